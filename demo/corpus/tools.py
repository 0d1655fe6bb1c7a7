"""Tool calls: schemas, questions that need one, parallel calls, answers after the tool's response, no call needed.

Calls are written as the chat template writes them, so that a history with ``tool_calls`` reads the same.
Called by the mixer.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from demo.corpus import facts, talk
from demo.corpus.dialog import Exchange, dumps
from demo.corpus.style import vary

CITIES = talk.WORDS["cities"]
SKIES = ["sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "clear"]
QUERIES = [
    "the tallest tower",
    "train times",
    "cheap flights",
    "a good book",
    "soup recipes",
    "the news today",
    "a bakery near me",
    "the history of tea",
    "garden tools",
    "chess rules",
    "the best museums",
    "football results",
    "Python lists",
    "the moon landing",
]


def schema(name: str, about: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """One function in the form of the chat interface."""
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


def call(name: str, arguments: dict[str, Any]) -> str:
    """One call in the template's form."""
    return '<tool_call>\n{"name": "' + name + '", "arguments": ' + dumps(arguments) + "}\n</tool_call>"


Case = tuple[dict[str, Any], str, str, str, str]


def weather(rng: Random) -> Case:
    """The weather somewhere: schema, question, call, response, final answer."""
    name = rng.choice(["get_weather", "get_current_weather", "weather", "get_weather"])
    key = rng.choice(["city", "location", "location", "place"])
    properties: dict[str, Any] = {key: {"type": "string"}}
    if rng.random() < 0.5:
        properties[key]["description"] = rng.choice(
            ["The city", "The city and state, e.g. San Francisco, CA", "City name", "A place"]
        )
    if rng.random() < 0.4:
        properties["unit"] = {"type": "string", "enum": ["celsius", "fahrenheit"]}
    about = rng.choice(
        [
            "Get the weather",
            "Get the current weather",
            "Get the current weather in a given location",
            "Weather for a city",
        ]
    )
    city = rng.choice(CITIES) if rng.random() < 0.8 else talk.made_up(rng).title()
    ask = rng.choice(
        [
            "What is the weather in {c}?",
            "What's the weather like in {c}?",
            "How is the weather in {c} today?",
            "Weather in {c}?",
            "Is it raining in {c}?",
            "Tell me the weather in {c}.",
            "Do I need an umbrella in {c}?",
            "How warm is it in {c}?",
            "What is the weather like in {c} today?",
            "What's the weather in {c}?",
        ]
    )
    sky, degrees = rng.choice(SKIES), rng.randint(-5, 35)
    response = rng.choice(
        [
            dumps({"temperature": degrees, "condition": sky}),
            f"{sky}, {degrees} degrees",
            dumps({key: city, "temperature": degrees, "condition": sky}),
            dumps({"temp": degrees, "sky": sky}),
        ]
    )
    arguments: dict[str, Any] = {key: city}
    question = ask.replace("{c}", city)
    if "unit" in properties and rng.random() < 0.4:
        arguments["unit"] = rng.choice(["celsius", "fahrenheit"])
        question = question.rstrip("?.") + f" in {arguments['unit']}?"
    final = f"The weather in {city} is {sky}, with {degrees} degrees."
    return schema(name, about, properties, [key]), question, call(name, arguments), response, final


def calculator(rng: Random) -> Case:
    """A sum for a calculator."""
    a, b = rng.randint(2, 999), rng.randint(2, 999)
    sign, word = rng.choice([("+", "plus"), ("-", "minus"), ("*", "times")])
    result = {"+": a + b, "-": a - b, "*": a * b}[sign]
    ask = rng.choice(
        [
            "What is {a} {s} {b}?",
            "Calculate {a} {s} {b}.",
            "How much is {a} {w} {b}?",
            "What is {a} {w} {b}?",
            "Compute {a} {s} {b}.",
        ]
    )
    question = ask.replace("{a}", str(a)).replace("{b}", str(b)).replace("{s}", sign).replace("{w}", word)
    final = f"{a} {sign} {b} = {result}"
    if rng.random() < 0.6:
        name, key = rng.choice(["calculator", "calculate"]), "expression"
        tool = schema(name, rng.choice(["Calculate an expression", "Do arithmetic"]), {key: {"type": "string"}}, [key])
        return (
            tool,
            question,
            call(name, {key: f"{a} {sign} {b}"}),
            rng.choice([str(result), dumps({"result": result})]),
            final,
        )
    name = {"+": "add", "-": "subtract", "*": "multiply"}[sign]
    tool = schema(name, f"{name.title()} two numbers", {"a": {"type": "integer"}, "b": {"type": "integer"}}, ["a", "b"])
    return tool, question, call(name, {"a": a, "b": b}), str(result), final


def clock(rng: Random) -> Case:
    """The time somewhere."""
    name = rng.choice(["get_time", "get_current_time", "current_time"])
    key = rng.choice(["city", "timezone", "location"])
    city = rng.choice(CITIES)
    ask = rng.choice(
        ["What time is it in {c}?", "Tell me the time in {c}.", "What is the time in {c}?", "How late is it in {c}?"]
    )
    time = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    tool = schema(
        name,
        rng.choice(["Get the time", "Get the current time", "The time in a city"]),
        {key: {"type": "string"}},
        [key],
    )
    return (
        tool,
        ask.replace("{c}", city),
        call(name, {key: city}),
        rng.choice([time, dumps({"time": time})]),
        f"It is {time} in {city}.",
    )


def search(rng: Random) -> Case:
    """A web search."""
    name = rng.choice(["search", "web_search", "search_web"])
    key = rng.choice(["query", "query", "q"])
    query = rng.choice(QUERIES)
    ask = rng.choice(
        ["Search for {q}.", "Search the web for {q}.", "Find {q}.", "Look up {q}.", "Can you search for {q}?"]
    )
    found = rng.choice(["3 results", "no results", "10 results", "1 result"])
    tool = schema(
        name, rng.choice(["Search the web", "Find pages on the web", "Search"]), {key: {"type": "string"}}, [key]
    )
    return (
        tool,
        ask.replace("{q}", query),
        call(name, {key: query}),
        dumps({"found": found}),
        f"The search for {query} gave {found}.",
    )


def generic(rng: Random) -> Case:
    """A function whose name and parameter are made up, so that the model learns to copy them."""
    verb, noun = rng.choice(["get", "find", "send", "read", "open", "set"]), talk.made_up(rng)
    name, key, value = (
        f"{verb}_{noun}",
        rng.choice(["name", "id", "value", "text", "item"]),
        rng.choice(talk.NAMES + talk.ECHO_WORDS[:30]),
    )
    tool = schema(name, f"{verb.title()} the {noun}", {key: {"type": "string"}}, [key])
    question = rng.choice(["{v} the {n} for {x}.", "Please {v} the {n} of {x}.", "Can you {v} the {n} for {x}?"])
    question = question.replace("{v}", verb).replace("{n}", noun).replace("{x}", value)
    return (
        tool,
        question[0].upper() + question[1:],
        call(name, {key: value}),
        "ok",
        f"Done: the {noun} for {value} is ok.",
    )


CASES: list[Callable[[Random], Case]] = [weather, calculator, clock, search, generic]
WEIGHTS = [4.0, 2.0, 1.5, 1.5, 1.5]


def with_others(tool: dict[str, Any], maker: Callable[[Random], Case], rng: Random) -> list[dict[str, Any]]:
    """The tool, sometimes among one or two others."""
    tools = [tool]
    if rng.random() < 0.35:
        tools += [
            other(rng)[0] for other in rng.sample([case for case in CASES if case is not maker], rng.randint(1, 2))
        ]
    rng.shuffle(tools)
    return tools


def tool_exchange(rng: Random) -> Exchange:
    """One conversation with tools."""
    maker = rng.choices(CASES, weights=WEIGHTS)[0]
    tool, question, request, response, final = maker(rng)
    system = rng.choice(
        ["You are a helpful assistant.", "You are a helpful assistant with tools.", "Use the tools when you need them."]
    )
    system_or_none = system if rng.random() < 0.4 else None
    tools = with_others(tool, maker, rng)
    roll = rng.random()
    if roll < 0.2:
        prompt, answer = facts.fact_question(rng) if rng.random() < 0.7 else talk.talk_pair(rng)
        return Exchange([("user", vary(prompt, rng)), ("assistant", answer)], system_or_none, tools)
    if roll < 0.32 and maker in (weather, clock):
        first, second = rng.sample(CITIES, 2)
        key = next(iter(tool["function"]["parameters"]["properties"]))
        ask = "What is the weather in {a} and {b}?" if maker is weather else "What time is it in {a} and in {b}?"
        request = "\n".join(call(tool["function"]["name"], {key: city}) for city in (first, second))
        turns = [("user", ask.replace("{a}", first).replace("{b}", second)), ("assistant", request)]
        if maker is weather and rng.random() < 0.5:
            values = [f"{rng.choice(SKIES)}, {rng.randint(-5, 35)} degrees" for _ in range(2)]
            turns += [
                ("tool", values[0]),
                ("tool", values[1]),
                ("assistant", f"{first}: {values[0]}. {second}: {values[1]}."),
            ]
        return Exchange(turns, system_or_none, tools)
    turns = [
        ("user", vary(question, rng) if maker is weather and rng.random() < 0.2 else question),
        ("assistant", request),
    ]
    if rng.random() < 0.55:
        turns += [("tool", response), ("assistant", final)]
    return Exchange(turns, system_or_none, tools)
