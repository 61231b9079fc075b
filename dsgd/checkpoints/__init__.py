"""What a run can go on from: snapshots, the files that keep them, and the tiers where they lie."""
