"""Opens stores for `nyala.connect`.

open_store    opens a store in a folder; manages the open stores of this process and their threads
open_bucket   opens a store in a bucket
"""
