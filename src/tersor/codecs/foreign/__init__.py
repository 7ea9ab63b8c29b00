"""Codecs of other projects, made to keep our promise."""
