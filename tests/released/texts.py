"""The texts that are asked for: TEXTS are tokenised, the first NUM_SCORED also scored; CHATS are rendered.

LONG is scored too: it is longer than the windows that layers of Gemma 3 see. EMBEDDED are embedded: the last one is longer
than the distances that MPNet tells apart.
"""

from __future__ import annotations

from typing import Any

NUM_SCORED = 20

TEXTS = [
    "The capital of France is Paris, which lies on the Seine.",
    "Water boils at 100 degrees Celsius at sea level, and at less on a mountain.",
    "def add(a, b):\n    return a + b\n\nprint(add(2, 3))\n",
    "Once upon a time there was a small village at the edge of a large forest.",
    "SELECT name, COUNT(*) FROM users WHERE age > 21 GROUP BY name;",
    "Der schnelle braune Fuchs springt über den faulen Hund.",
    "La vie est belle quand on a des amis et du temps.",
    "1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144",
    "The mitochondria is the powerhouse of the cell.",
    '{"name": "Ada", "born": 1815, "fields": ["mathematics", "computing"]}',
    "To be, or not to be, that is the question.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "Dear Sir or Madam, I am writing to apply for the position of librarian.",
    "If all birds can fly and penguins are birds, then something is wrong.",
    "<html><body><h1>Title</h1><p>Some text.</p></body></html>",
    "El perro corre por el parque mientras los niños juegan.",
    "In 1969, two people walked on the Moon for the first time.",
    "The derivative of x squared is two x, and its integral is a third of x cubed.",
    "Shopping list: eggs, milk, bread, butter, apples.",
    "He opened the door, looked around, and said: nobody is here.",
    "Hello, world!",
    " leading and trailing blanks ",
    "tabs\tand\nnew\r\nlines\n\n\n",
    "3.14159 2.71828 1,000,000 0x1F 1e-9",
    "naïve café Ångström ß İstanbul",
    "Привет, мир!",
    "你好，世界。",
    "こんにちは世界",
    "안녕하세요 세계",
    "שלום עולם",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "👋🏽 🇩🇪 👩‍👩‍👧‍👦",
    "I'm you're he'll she'd we've they're DON'T",
    "a  b   c    d     e",
    "snake_case camelCase kebab-case UPPER",
    "https://example.com/path?query=1&other=two#part",
    "user@example.com",
    "C:\\Windows\\System32\\drivers",
    "x = [i**2 for i in range(10) if i % 2 == 0]",
    "$5.00 + €3.50 = £7.25?",
    "(parentheses) [brackets] {braces} <angles>",
    "...---...!!!???",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "supercalifragilisticexpialidocious",
    "#include <stdio.h>\nint main(void) { return 0; }",
    "| a | b |\n|---|---|\n| 1 | 2 |",
    "e\u0301 and \u00e9",
    "\u00a0no-break\u2003em\u200bzero",
    "The end.",
]
LONG = "\n".join(TEXTS)
EMBEDDED = [*TEXTS[:NUM_SCORED], "\n".join(TEXTS[:10])]

_USER = {"role": "user", "content": "What is the capital of France?"}
CHATS: list[list[dict[str, Any]]] = [
    [_USER],
    [{"role": "system", "content": "Answer in one word."}, _USER],
    [_USER, {"role": "assistant", "content": "Paris."}, {"role": "user", "content": "And of Spain?"}],
]
