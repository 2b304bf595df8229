"""Compaction of a store that goes on working.

measurement        open rowsets as the numbers that the policy needs
plans              those numbers, and the plans that the policy returns
policy             which compaction of a tablet pays best now: pure
rowset_selection   which rowsets to merge within a budget: pure
lifecycle          begin, run, install
file_jobs          the work itself, as functions from files to files
background         the thread: which tablet next, here or in a worker process
text_limit         how much text of one column a merge holds
"""
