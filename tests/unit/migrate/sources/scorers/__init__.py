"""A dispatch over data sources, as verl's rewards have it."""


def compute(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """Score by the grader of the data source."""
    if data_source == "school/gsm8k":
        from . import gsm8k_style

        result = gsm8k_style.compute_score(solution_str, ground_truth)
    elif data_source in ["school/MATH", "school/MATH-500"]:
        from . import math_style

        # boxed answers, compared as normalised text
        result = math_style.compute_score(solution_str, ground_truth)
    elif data_source in ("dapo", "dapo_long") or data_source.startswith("aime"):
        from . import dapo_style

        result = dapo_style.compute_score(solution_str, ground_truth)
    elif data_source == "school/geometry":
        from . import geo_style

        result = geo_style.compute_score(solution_str, ground_truth)
    elif data_source in {"olympiads", "contests"}:
        from . import prime_style

        result = prime_style.compute_score(solution_str, ground_truth)
    else:
        raise NotImplementedError(data_source)

    if isinstance(result, dict):
        return result
    return float(result[0]) if isinstance(result, tuple) else float(result)
