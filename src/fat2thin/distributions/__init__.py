"""The q-Gaussian family, a squashed Gaussian and a Beta on a box, as NumPyro distributions.

Importing this package registers their KL divergences with NumPyro's `kl_divergence`.
"""

from fat2thin.distributions.beta import BoxBeta
from fat2thin.distributions.divergences import (
    kl_sparse_cauchy,
    monte_carlo_k3,
    monte_carlo_kl,
    sample_with_log_prob,
)
from fat2thin.distributions.multivariate import (
    MultivariateQGaussian,
    index_from_degrees_of_freedom,
    multivariate_student_t,
    student_t_parameters,
)
from fat2thin.distributions.q_gaussian import QGaussian
from fat2thin.distributions.squashed_gaussian import SquashedGaussian

__all__ = [
    "BoxBeta", "MultivariateQGaussian", "QGaussian", "SquashedGaussian",
    "index_from_degrees_of_freedom", "kl_sparse_cauchy", "monte_carlo_k3", "monte_carlo_kl",
    "multivariate_student_t", "sample_with_log_prob", "student_t_parameters",
]  # fmt: skip
