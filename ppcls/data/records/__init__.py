"""Record formats: files with many images, and how to write, index and read them in any order."""
