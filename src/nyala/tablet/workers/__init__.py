"""Processes for heavy work: the pool, and the protocol between parent and child (`nyala._worker`)."""
