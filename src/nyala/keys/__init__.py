"""Primary keys as bytes that sort like the keys.

Read in this order: `arrow_memory` (NumPy views of Arrow buffers), `hash64` (hashes of keys for
bloom filters), `encoded_keys` (a vector of keys), `word_search` (finds integers in a sorted array),
`codec` (encodes rows to keys and back), `short_keys` (the keys of one file as integers),
`key_range` (ranges of keys, and the range that the predicates of a scan allow).

`nyala.schema.types` defines two forms of values. *Canonical arrays* have the Arrow type of the
column's type. *Canonical scalars* are, for example, dates as days since 1970.
"""
