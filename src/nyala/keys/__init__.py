"""Primary keys as bytes that sort like the keys.

Read in this order: `arrow_memory` (NumPy views of Arrow buffers), `hash64`, `encoded_keys` (a
vector of keys), `word_search`, `codec` (encodes rows to keys and back), `short_keys` (the keys of
one file as integers), `key_range` (ranges of keys, and the range that the predicates of a scan
allow).
"""
