"""What tells a scan or a look-up that a block, or a whole file, can be left out."""
