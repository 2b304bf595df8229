"""Benchmarks of Nyala and other stores: `make bench`, or `python -m bench`. See bench/README.md."""
