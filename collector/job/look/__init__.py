"""Looking at what a job has collected: numbers, pictures, videos, and episodes played again."""
