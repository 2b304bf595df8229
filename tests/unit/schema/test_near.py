"""Suggestions ("did you mean …?") for unknown names."""

from __future__ import annotations

import pytest

from nyala.suggestion import nearest


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("CUSTOMER", "customer"),
        ("cust", "customer"),
        ("custommer", "customer"),
        ("s", "st"),
        ("sta", "Status"),
        ("STATUS", "Status"),
        ("stat", "Status"),
        ("order", None),
        ("", None),
    ],
)
def test_the_suggestion_is_the_name_that_resembles_the_unknown_name(name: str, meant: str | None) -> None:
    assert nearest(name, ["st", "customer_number", "customer", "Status", "STATUS"]) == meant
    assert nearest(name, []) is None
