"""Routes that look closely: journeys, search, exports, and jobs."""
