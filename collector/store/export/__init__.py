"""Import `export` and `import_minari` from `collector`: data sets in the formats of other tools."""
