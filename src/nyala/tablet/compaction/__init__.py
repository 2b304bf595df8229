"""Compaction of rowsets and delta files, while others read and write the store.

measurement        measures rowsets for the policy
plans              the input of the policy (measurements) and its output (plans)
policy             chooses the best compaction of a tablet from measurements
rowset_selection   chooses the rowsets to merge within a budget
lifecycle          executes a plan: begin, run, install
file_jobs          the work of a compaction, as functions from files to files
background         the background thread: chooses the tablet, and the process that does the work
text_limit         limits the text that a merge holds in memory
"""
