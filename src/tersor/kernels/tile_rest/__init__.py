"""What list codecs do with tiles that are not plainly coded, on a GPU."""
