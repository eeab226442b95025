"""Google Cloud Storage: the one part of this package that imports Google's libraries."""
