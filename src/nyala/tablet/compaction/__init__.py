"""Compaction, while the store goes on working.

measurement        measures rowsets for the policy
plans              these measurements, and the plans that the policy returns
policy             chooses the compaction of a tablet that pays best; pure
rowset_selection   chooses the rowsets to merge within a budget; pure
lifecycle          begin, run, install
file_jobs          the work itself, as functions from files to files
background         the thread: chooses the tablet, and where the work runs
text_limit         limits the text of one column that a merge holds
"""
