"""What a run meets: faults as data; hosts, links and topologies as functions of time."""
