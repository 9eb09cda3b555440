"""The words of Paceline and the statistics: standard library, numpy and pydantic only."""
