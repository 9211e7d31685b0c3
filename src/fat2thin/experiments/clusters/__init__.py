"""Plans computed on clusters: Ray, or SLURM through submitit. A shared folder is the only truth."""
