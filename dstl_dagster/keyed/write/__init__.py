"""New rows of a state: as changes in files of their own, in shared files, or in the place of others."""
