"""Tables on the device that let one launch work on the rows of many matrices."""
