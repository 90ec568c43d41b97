"""What is counted in a sum: whether numbers with these nouns may be added as they stand."""

from collections.abc import Sequence

from shoal.defenses.notation import listed

_MEASURES = (
    "second minute hour day week month year sec min hr h",
    "mm cm m km inch inche in ft foot feet yard mile meter metre centimeter centimetre kilometer kilometre",
    "mg g kg gram kilogram ton tonne pound lb ounce oz",
    "ml l liter litre milliliter millilitre gallon cup pint quart tablespoon teaspoon",
    "$ € £ ¥ cent ¢ dollar euro penny pennie nickel dime quarter buck",
)
_DIMENSION = {word: place for place, line in enumerate(_MEASURES) for word in line.split()}
_SYNONYMS = {"dollar": "$", "buck": "$", "euro": "€", "inche": "inch", "in": "inch", "foot": "ft", "feet": "ft"}
# Words that multiply, or give a digit its place: "3 tens + 4 ones = 34", "2 dozen + 3 = 27".
_MULTIPLIERS = frozenset(
    listed(
        "dozen hundred thousand million billion trillion pair couple score ten one tenth hundredth half "
        "halve third quarter fifth am pm o k bn"
    )
)


def summable(units: Sequence[str]) -> bool:
    """Return whether numbers with these nouns ("" for none) can be recomputed as plain numbers.

    Equal nouns can. Not so: measures of one dimension (hours and minutes), words that multiply unless all numbers have
    the same one, and single letters, which are variables unless all numbers have the same one.
    """
    named = {_SYNONYMS.get(unit, unit) for unit in units if unit}
    if len(named) <= 1 and (not named or "" not in units):
        return True
    if any(unit in _MULTIPLIERS or (len(unit.split("^")[0]) == 1 and unit.isalpha()) for unit in named):
        return False
    if any(not unit[-1].isalpha() and len(unit) > 1 for unit in named):  # powers of a letter
        return False
    dimensions = [_DIMENSION[unit] for unit in named if unit in _DIMENSION]
    return len(dimensions) == len(set(dimensions))
