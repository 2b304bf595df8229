"""What Nyala costs, measured beside its peers: `make bench`, or `python -m bench`. See bench/README.md."""
