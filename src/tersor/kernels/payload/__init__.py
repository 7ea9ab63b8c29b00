"""The payload of an error-bounded codec: how it was coded, the coded body, and the outliers.

Order of reading: ``layout.py``, then ``plain.py``.
"""
