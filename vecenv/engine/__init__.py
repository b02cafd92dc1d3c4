"""Engine of a vector env: runs rounds (one operation per env), builds results and handles failures."""
