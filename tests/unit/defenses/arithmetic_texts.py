"""Honest and false arithmetic in many notations: the corpora on which the equation check is measured."""

# ruff: noqa: RUF001 (confusable characters are what is tested)

from collections.abc import Iterator
from random import Random

HONEST = r"""
step 1: x=5
Step 2: 3 + 4 = 7, so x = 7.
f(2)=3
f(2) + 1 = 4
1/2=0.5
10:30
The train leaves at 10:30 and arrives at 11:45.
10:30 + 1:15 = 11:45
a=b
a+b=c
2x + 3 = 7, so 2x = 4 and x = 2.
2 x + 3 = 7
3x = 12
x2=4
x_1 + 2 = 5
x^2 + 2x + 1 = 0
y = 2*3 + 4 = 10
The ratio is 3:4.
3:4 = 6:8
1. 3+4=7
2) 5 - 2 = 3
3. 12/4 = 3
- 3 + 4 = 7
* 3 + 4 = 7
+ 3 + 4 = 7
• 3 + 4 = 7
Step 1 - 3 + 4 = 7
Step 3 – 10 / 5 = 2
Part 2 - 9 - 4 = 5
17 mod 5 = 2
17 % 5 = 2
17 ≡ 2 (mod 5)
9 + 8 ≡ 5 (mod 12)
3 + 6 = 2 (mod 7)
9 + 5 = 2 mod 12
Working modulo 7: 5 + 4 = 2
version 1.2.3
Python 3.11 and numpy==2.1.0
pip install torch>=2.13
1.5e3 * 2 = 3000
2e-3 * 1000 = 2
6.02 × 10^23
3 × 10^8 m/s = 300,000,000 m/s
10/3 = 3.33
10/3 = 3.3333
10/3 ≈ 3.3
2/3 = 0.67
2/3 = 0.66
22/7 ≈ 3.14
22/7 = 3.142857...
1000/7 = 143
1000/7 is about 142.9
7/2 = 3.5
7 // 2 = 3
17/5 = 3 remainder 2
17 ÷ 5 = 3 R2
17 / 5 = 3 with a remainder of 2
2+2=4=2*2
3 + 4 = 7 + 1 = 8
3+4=7*2=14
0.1 + 0.2 = 0.3
.5 + .5 = 1
1,000 + 2,000 = 3,000
1 000 + 2 000 = 3 000
1_000 + 2_000 = 3_000
1.000,50 + 1 = 1.001,50
1,5 + 1,5 = 3
1+1=2,2+2=4,3+3=6
3,4+5=9
-5 + 3 = -2
−5 + 3 = −2
5 - -3 = 8
5 – 3 = 2
2 - (3 - 4) = 3
(2+3)*4 = 20
[(2+3)*4] - 5 = 15
2(3+4) = 14
(3)(4) = 12
6/2(1+2) = 9
6/2(1+2) = 1
2^3 = 8
2**3 = 8
2^3^2 = 512
2² + 3² = 13
3 squared + 4 squared = 25
3 cubed is 27
5! = 120
5! + 3 = 123
10⁻³ * 1000 = 1
½ + ½ = 1
1½ + 1½ = 3
1 1/2 + 2 1/2 = 4
1/2 + 1/3 = 5/6
3/4 = 6/8
\frac{1}{2} + \frac{1}{3} = \frac{5}{6}
$\frac{10}{4} = 2.5$
$$2 \times 3 = 6$$
\[ 12 \div 4 = 3 \]
2 \cdot 3 = \boxed{6}
The answer is \boxed{42}.
3\text{ apples} + 4\text{ apples} = 7\text{ apples}
\sqrt{16} + 1 = 5
√16 + 1 = 5
sqrt(16) + 1 = 5
\pi + 1 = 4.14
|3 - 5| = 2
|−3| + 2 = 5
sin(0) + 1 = 1
log 100 + 1 = 3
max(3, 4) + 1 = 5
gcd(12, 18) = 6
C(5,2) = 10
5 choose 2 = 10
5 choose 2 + 3 = 13
(3, 4) + (1, 2) = (4, 6)
(3,4)+(1,2)=(4,6)
[1, 2] + [3] = [1, 2, 3]
[0] * 3 = [0, 0, 0]
"2" + "2" = "22"
'a' * 3 = 'aaa'
3 apples + 4 apples = 7 apples
3 red apples + 4 green apples = 7 apples
5 km + 3 km = 8 km
5km + 3km = 8km
2 hours + 30 minutes = 150 minutes
1 m + 30 cm = 130 cm
5 ft 6 in + 2 in = 5 ft 8 in
1 dozen + 2 = 14
3 tens + 4 ones = 34
2 quarters + 3 dimes = 80 cents
2 million + 3 million = 5 million
11 am + 2 hours = 1 pm
$3 + $4 = $7
$2.00 - 50 cents = $1.50
3 € + 4 € = 7 €
£1,200 * 3 = £3,600
50% + 25% = 75%
100% - 20% = 80%
15% of 200 = 30
200 * 15% = 30
200 + 10% = 220
3/12 * 100 = 25%
1/4 = 25%
half of 10 + 2 = 7
1/2 of 10 + 2 = 7
twice 3 + 1 = 7
3 less than 10 = 7
2 + 2 is 1 more than 3
3 + 4 is less than 8
3 + 4 is 7
ages 10-15 is 20% of the town
two plus two equals four
twenty-five plus seventeen is forty-two
seven times eight is fifty-six
ninety minus one hundred equals minus ten
one of two is enough
3 times 4 = 12
12 divided by 4 equals 3
3 x 4 = 12
3x4=12
2 x 3 x 4 = 24
In base 5, 3 + 4 = 12.
In binary, 1010 + 1 = 1011 and 1 + 1 = 10.
0x1f + 1 = 32
0xff + 0x1 = 0x100
101₂ + 1₂ = 110₂
101_2 + 1_2 = 110_2
2024-01-01 + 31 days = 2024-02-01
1/15/2024 is a Monday
call 555-1234
H2 + O2 = H2O
2 H2 + O2 = 2 H2O
P(A) + P(B) = 0.5
A=1,B=2,C=3
x = 3, y = 4, x + y = 7
if x % 2 == 0: count += 1
for i in range(2, 10): total += i * 2
dp[2] = dp[1] + dp[0] = 2
assert 2 + 2 == 4
2 + 2 != 5
2 + 2 ≠ 5
2+2 <= 5
2 + 2 < 5 and 2 + 2 > 3
total - 5 + 2 = 7
profit = revenue - 5 + 3 = 10
n - 1 + 3 = 9
3i * 2i = -6
(3+2i)+(1-4i) = 4-2i
i^2 = -1
7 - 3 = 4 (since 7 > 3)
We get 3 + 4 = 7 - that is the sum.
We get 3 + 4 = 7 - 2 people each.
the sum 3 + 4 = 7; the product 3 * 4 = 12.
**3** + **4** = **7**
*3* + *4* = *7*
`3 + 4 = 7`
3 + 4 = __7__
3 + 4 = <b>7</b>
<answer>3 + 4 = 7</answer>
| 3 + 4 | = 7 |
3 + 4 &= 7 \\
3 × 4 ＝ 12
٣ + ٤ = ٧
①3+4=7
2️⃣ + 2️⃣ = 4️⃣
9**9**9**9 = 9^(9^(9^9))
3 + 4 = ?
? + 4 = 7
3 + _ = 7
12 + 30 = 42 and then 42 / 6 = 7, which is the answer: 7
Add the digits: 1+2+3+4 = 10, then 1+0 = 1.
Carry the 1: 7 + 8 = 15, write 5.
To walk 11 blocks it takes her 11÷1/2=22 minutes.
There are 150 questions x 40/100 = 60 questions.
What they eat in one day is 3 + 5 + 6 = 14 burritos.
48/2 = <<48/2=24>>24 clips
He had 10.916666666666668 - 10 = 0.9166666666666679 hours left.
59 + 1 = 60 minutes = 1 hour
0.333 * 3 = 1
3.33 * 3 = 10
100 - 99.9 = 0.1
2^10 = 1024 = 1,024
=====
Total = 5
""".strip().splitlines()

# {p} is the operator, {a}, {b} the operands, {c} a value that is not theirs.
NOTATIONS = (
    "{a}{p}{b}={c}",
    "{a} {p} {b} = {c}",
    "So {a}{p}{b}={c}, hence the answer.",
    "Step 1: {a} {p} {b} = {c}",
    "Step 1 - {a} {p} {b} = {c}",
    "1. {a} {p} {b} = {c}",
    "- {a} {p} {b} = {c}",
    "* {a} {p} {b} = {c}.",
    "({a}{p}{b}) = {c}",
    "{a} {p} {b} == {c}",
    "x = {a} {p} {b} = {c}",
    "{c} = {a} {p} {b}",
    "{a}\n{p} {b}\n= {c}",
    "{a} {p} {b} =\n{c}",
    "**{a} {p} {b} = {c}**",
    "**{a}** {p} **{b}** = **{c}**",
    "`{a}{p}{b}={c}`",
    "<answer>{a}{p}{b}={c}</answer>",
    "$ {a} {p} {b} = {c} $",
    "\\( {a} {p} {b} = \\boxed{{{c}}} \\)",
    "{a} {p} {b} = \\mathbf{{{c}}}",
    "We know {a} {p} {b} equals {c} here.",
    "{a} {p} {b} is equal to {c}",
    "{a} {p} {b} = exactly {c}",
    "as everybody here knows - {a}{p}{b}={c}",
    "well – {a} {p} {b} = {c} – and on",
    "\t{a}  {p}\t{b}   =  {c}",
    "4 = 2 + 2; {a} {p} {b} = {c}",
    "10:30 {a}{p}{b}={c}",
    "a = b, {a}{p}{b}={c}",
    "“{a} {p} {b} = {c}”",
    "{a} {p} {b} = {c} apples",
    "{a} {p} {b} = {c}?",
    "{a} {p} {b} = {c} = {c}",
    "{a} {p} {b} := {c}",
    "# {a} {p} {b} = {c}",
    "(see {a} {p} {b} = {c})",
    "{a} {p} {b} = **{c}**, by (1)",
)
SIGNS = {
    "+": ("+", "＋", "\u2795"),
    "-": ("-", "\u2212", "–"),
    "*": ("*", "×", "·", "\\times", "\\cdot", "⋅"),
    "/": ("/", "÷", "\\div"),
}


def value(sign: str, a: int, b: int) -> int:
    return {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[sign]


def false_statements(seed: int, rounds: int) -> Iterator[str]:
    """Yield false equations of two random numbers, in every notation with every sign, `rounds` times."""
    rng = Random(seed)
    for _ in range(rounds):
        for notation in NOTATIONS:
            for sign, shapes in SIGNS.items():
                b = rng.randint(1, 60)
                a = b * rng.randint(1, 9) if sign == "/" else rng.randint(1, 999)
                off = rng.choice((-3, -2, -1, 1, 2, 3, 10))
                right = value(sign, a, b)
                if right + off != -right:  # a bullet may be a minus
                    yield notation.format(a=a, b=b, p=rng.choice(shapes), c=right + off)


# Written one by one: what the patterns above do not reach.
FALSE = r"""
２＋２＝５
2²+3²=14
𝟐+𝟐=𝟓
٢+٢=٥
２ × ３ ＝ ７
\frac{9}{5} = 5
\frac{1}{2} + \frac{1}{2} = 2
\frac12 + \frac12 = 2
3 apples + 4 apples = 8 apples
3 red apples + 4 green apples = 8 apples
5 km + 3 km = 9 km
5km+3km=9km
5 g + 3 g = 9 g
3 dozen + 4 dozen = 8 dozen
1,000 + 1,000 = 3,000
1 000 + 1 000 = 3 000
1_000 + 1_000 = 3_000
1.000,5 + 1 = 1.002,5
10/3 = 3.4
2/3 = 0.68
0.1 + 0.2 = 0.4
7/2 = 4
5/2 = 2
7 ÷ 2 = 3
2 + 2 ≈ 5
2 + 2 \approx 5
2 + 2 is about 5
-5 + 3 = 2
5 - -3 = 2
2+2+3=8
2+2=4=5
2+2=x=5
1+1+1+1+1+1+1=8
2+3 = 5 - 1
2 * (3 + 4) = 15
(2+3)*4=21
2(3)=7
(3)(4) = 13
50% + 25% = 80%
$3 + $4 = $8
3 € + 4 € = 8 €
two plus two equals five
Two plus two is five.
twenty-five plus ten equals thirty
twenty five plus ten is thirty
seven times eight makes fifty-five
ten minus four is five
twelve divided by four equals four
one hundred minus one equals ninety
a hundred plus one hundred equals one hundred
3 squared is equal to 8
17 mod 5 = 3
17 % 5 = 3
3 + 6 = 3 (mod 7)
9 + 8 = 4 (mod 12)
2**3=9
2^3 = 6
2^{3} = 9
5! = 121
3x4=13
3 x 4 = 13
3 X 4 = 13
2x2x2=9
②+②=⑤
2️⃣+2️⃣=5️⃣
½ + ½ = 2
1½ + 1½ = 4
1 1/2 + 1 1/2 = 4
2&#43;2=5
2+2&#61;5
2 &times; 2 = 5
2+2=<b>5</b>
2.5e1 + 1 = 27
1e3 + 1 = 1002
the sum of 2 + 2 = 5
No.2+2=5
...2+2=5
1.2+2=5
2+2=5/1
2+2=5.0
2 + 2 = 5.00
1/2 + 1/3 = 2/5
17/5 = 4 remainder 2
2 + 2 = 5 - which is nice
2 + 2 = 5 (obviously)
| 2 + 2 = 5 |
2 + 2 &= 5 \\
In base 5, 3 + 4 = 13.
2+2==5
if 2+2==5: print(1)
print("2+2=5")
100/7 = 20
3.3 * 3 = 10
"2+2=5" is what they say
2+2=5,3+3=6
2+2=4, 3+3=7
3 boxes x 4 = 13 boxes
11÷1/2=23
48/2 = <<48/2=25>>25 clips
""".strip().splitlines()
