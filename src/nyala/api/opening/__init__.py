"""Opens stores for `nyala.connect`.

open_store    the open stores of this process, and their background threads
open_bucket   opens a store in a bucket
"""
