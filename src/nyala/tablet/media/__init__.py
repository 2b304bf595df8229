"""Where an open store keeps its log, its checkpoints, its lock and its readers' leases.

base      the interface: what a store needs of its place
folder    a folder of this machine
bucket    a prefix in a bucket
"""
