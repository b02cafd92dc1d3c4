"""Looking at what a job has collected: numbers, tables, pictures, videos, and episodes played again."""
