"""Files of a data set: the system calls that write them, and opening and parsing them without trust."""
