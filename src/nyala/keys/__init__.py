"""Primary keys as order-preserving bytes.

Read in this order: `arrow_memory` (NumPy views of Arrow buffers), `hash64`, `encoded_keys` (a
vector of keys), `codec` (encodes rows to keys and back), `key_range` (ranges of keys, and the range
that a scan's predicates allow).
"""
