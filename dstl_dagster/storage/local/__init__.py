"""Plain files of this machine as an object store, and what else needs files that others share."""
