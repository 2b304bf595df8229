"""Which name is probably meant: what "did you mean" says everywhere."""

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
def test_a_name_means_the_one_that_it_begins_or_looks_like(name: str, meant: str | None) -> None:
    assert nearest(name, ["st", "customer_number", "customer", "Status", "STATUS"]) == meant
    assert nearest(name, []) is None
