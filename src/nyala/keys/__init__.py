"""Primary keys as order-preserving bytes.

Read in this order: `arrow_memory` (NumPy's view of Arrow buffers), `hash64`, `encoded_keys` (a vector of
keys), `codec` (rows to keys and back), `key_range` (ranges of keys, and which one a scan's predicates leave).
"""
