"""The process for heavy work, and the messages between parent and child (`nyala._worker`)."""
