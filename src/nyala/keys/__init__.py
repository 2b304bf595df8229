"""Primary keys as bytes that sort like the keys.

Read in this order:

arrow_memory   NumPy views of Arrow buffers
hash64         hashes of keys for bloom filters
encoded_keys   a vector of encoded keys
word_search    finds integers in a sorted array
codec          encodes rows to keys, and decodes them
short_keys     the keys of one file as integers
key_range      ranges of keys, and the range that the predicates of a scan allow

`nyala.schema.types` defines two forms of values. *Canonical arrays* have the Arrow type of the
column's type. *Canonical scalars* are Python values, for example dates as days since 1970.
"""
