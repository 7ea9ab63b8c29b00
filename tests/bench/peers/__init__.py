"""Other projects' codecs and programs, real where they are installed and otherwise fakes."""
