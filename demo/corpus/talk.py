"""Small talk: greetings, identity, tests and echoes, unknown topics, translations, and the prompts of examples.

Hand-written pairs of wordings and one answer, plus a few generators that copy words from the prompt. Called
by the mixer (``talk_pair``, ``echo_pair``) and by the chats (``NAMES``).
"""

from random import Random

ME = "I am Dragoman's small demo model."
NAMES = (
    "Anna Ben Carla David Ella Felix Grace Henry Iris Jack Kate Leo Maria Nora Oscar Paul Rosa Sam Tom Vera Will Yuki "
    "Zoe Alice Bob Emma Liam Noah Mia Lucas Sofia Max Lena Omar Ravi Mei Ali Sara John Jane Peter Alex Chris Nina"
).split()

# Every entry: wordings, answer. The wordings are varied further by ``style.vary``.
PAIRS: list[tuple[list[str], str]] = [
    (["Hello!", "Hello", "Hi", "Hi!", "Hey", "Hey there!", "Hello there!", "Hi there", "Greetings!", "Hello, world!",
      "Hello world", "Howdy!"], "Hello! How can I help you today?"),
    (["Good morning!", "Good morning to you."], "Good morning! How can I help you today?"),
    (["Good evening!", "Good evening to you."], "Good evening! How can I help you?"),
    (["Good afternoon!"], "Good afternoon! How can I help you?"),
    (["How are you?", "How are you doing?", "How do you do?", "How is it going?", "How are you today?", "Hello, how are you?",
      "Hi, how are you?", "Hello! How are you today?"], "I am doing well, thank you. How can I help you?"),
    (["Who are you?", "What are you?", "Who are you and what can you do?", "Introduce yourself.", "Tell me about yourself.",
      "What is your name?", "Who am I talking to?", "What model are you?", "Which model are you?", "Are you ChatGPT?",
      "Are you a human?", "Are you a robot?", "Are you an AI?", "Describe yourself.", "Please introduce yourself.",
      "What kind of model are you?", "Your name?", "What should I call you?", "Are you a language model?", "Who is this?",
      "Hello, who are you?", "Hi! Who are you?"],
     ME + " I know a few hundred simple topics, and I make mistakes."),
    (["Who made you?", "Who created you?", "Who built you?", "Who trained you?", "How were you made?", "Where do you come from?",
      "How were you trained?", "What were you trained on?"],
     ME + " I was trained from scratch on a small text written for the Dragoman project."),
    (["What can you do?", "What can I ask you?", "How can you help me?", "Help", "Help me.", "What are you good at?",
      "What do you know?", "Can you help me?", "I need help.", "What are your abilities?"],
     "I can answer simple questions, write short stories and poems, make lists, add small numbers and call tools. "
     "I am only a small demo model."),
    (["How big are you?", "How many parameters do you have?", "How large are you?", "What is your size?", "Are you a large model?"],
     "I am a very small model with about six million parameters."),
    (["What is Dragoman?", "Tell me about Dragoman.", "What is dragoman?", "Explain Dragoman.", "What does Dragoman do?",
      "Dragoman"],
     "Dragoman is a server for language models. It loads a model and answers requests over HTTP. "
     "I am the small demo model that comes with it."),
    (["What does the word dragoman mean?", "What is a dragoman?", "Who was a dragoman?"],
     "A dragoman was an interpreter and guide between people of different languages."),
    (["How many ways can I peel an orange", "How many ways can I peel an orange?", "How many ways are there to peel an orange?",
      "In how many ways can you peel an orange?", "How can I peel an orange?", "How do I peel an orange?", "How to peel an orange",
      "What is the best way to peel an orange?", "What are the ways to peel an orange?", "Tell me how to peel an orange.",
      "How should I peel an orange?", "How do you peel an orange?", "Explain how to peel an orange.", "Peel an orange"],
     "There are at least three ways to peel an orange. You can pull the skin off with your fingers, cut it away with a knife "
     "in a long spiral, or score the skin into four parts and lift each part off."),
    (["Write a ...", "Write a", "Write a...", "Write", "Write something.", "Write me something.", "Write a text.", "Write an",
      "Write anything.", "Write a …"],
     "Write a little every day, and the words will come. A short text needs one idea, a clear beginning and a good end. "
     "Tell me what you would like: a story, a poem or a list."),
    (["What is ...", "What is", "What is...", "What is it?", "What", "What?", "What is …", "What are ...", "What is that?"],
     "What would you like to know? Ask me about a topic, for example deep learning, the Moon or bread."),
    (["Tell me about ...", "Tell me", "Tell me something.", "Tell me something interesting.", "Explain", "Explain ..."],
     "Here is something interesting: light from the Sun needs about eight minutes to reach the Earth. "
     "Name a topic, and I will tell you more."),
    (["How", "How ...", "How do I ...", "How do I", "How can I", "How?", "Why", "Why?", "Why ...", "When?", "Where?", "Who?",
      "Who is ...", "Who is"], "Please ask me a full question, and I will try to answer it."),
    (["This is a test", "This is a test.", "This is only a test.", "Test", "Testing", "test", "Test.", "Just a test.", "Testing, testing",
      "Testing 1 2 3", "This is just a test.", "I am testing you.", "This is a test prompt.", "This is a test message."],
     "This is a test, and it works. I can read your text and answer it."),
    (["Are you there?", "Can you hear me?", "Is anyone there?", "Are you ready?", "Does this work?", "Is this working?", "Ping", "ping"],
     "Yes, I am here and ready to help."),
    (["Thank you!", "Thanks!", "Thank you very much.", "Thanks a lot!", "Thanks for your help.", "Great, thank you."],
     "You are welcome! I am happy to help."),
    (["Goodbye!", "Bye!", "See you later!", "Good night!", "Bye bye.", "See you tomorrow."], "Goodbye! Have a nice day."),
    (["Tell me a joke.", "Tell a joke.", "Do you know a joke?", "Make me laugh.", "Say something funny.", "Write a joke.",
      "Tell me a joke", "Tell me a funny joke.", "I want to hear a joke."],
     "Why did the computer go to the doctor? Because it had caught a virus."),
    (["Tell me another joke.", "One more joke, please.", "Do you know another joke?"],
     "What did the zero say to the eight? Nice belt!"),
    (["Tell me a riddle.", "Give me a riddle.", "Do you know a riddle?"],
     "What has hands but cannot clap? A clock."),
    (["What is the meaning of life?", "Why are we here?", "What is the purpose of life?"],
     "That is a big question for a small model. Many people find meaning in love, work and helping others."),
    (["What is the capital of France?", "Capital of France?", "Name the capital of France.", "Which city is the capital of France?"],
     "The capital of France is Paris."),
    (["What is the capital of Germany?", "Capital of Germany?"], "The capital of Germany is Berlin."),
    (["What is the capital of Italy?", "Capital of Italy?"], "The capital of Italy is Rome."),
    (["What is the capital of Spain?", "Capital of Spain?"], "The capital of Spain is Madrid."),
    (["What is the capital of Japan?", "Capital of Japan?"], "The capital of Japan is Tokyo."),
    (["What is the capital of China?", "Capital of China?"], "The capital of China is Beijing."),
    (["What is the capital of England?", "What is the capital of the United Kingdom?"], "The capital of the United Kingdom is London."),
    (["What is the capital of the United States?", "What is the capital of the USA?"],
     "The capital of the United States is Washington, D.C."),
    (["What is the capital of Canada?", "Capital of Canada?"], "The capital of Canada is Ottawa."),
    (["What is the capital of Egypt?", "Capital of Egypt?"], "The capital of Egypt is Cairo."),
    (["Say hello in Japanese.", "How do you say hello in Japanese?", "Translate hello to Japanese.", "Hello in Japanese"], "こんにちは"),
    (["Say thank you in Japanese.", "How do you say thank you in Japanese?"], "ありがとう"),
    (["Say hello in Chinese.", "How do you say hello in Chinese?", "Translate hello to Chinese."], "你好"),
    (["Say thank you in Chinese.", "How do you say thank you in Chinese?"], "谢谢"),
    (["Say hello in Korean.", "How do you say hello in Korean?"], "안녕하세요"),
    (["Say hello in Russian.", "How do you say hello in Russian?"], "Привет"),
    (["Say hello in Greek.", "How do you say hello in Greek?"], "Γειά σου"),
    (["Say hello in Hindi.", "How do you say hello in Hindi?"], "नमस्ते"),
    (["Say hello in Arabic.", "How do you say hello in Arabic?"], "مرحبا"),
    (["Say hello in French.", "How do you say hello in French?", "Translate hello to French."], "Bonjour"),
    (["Say hello in German.", "How do you say hello in German?", "Translate hello to German."], "Guten Tag"),
    (["Say hello in Spanish.", "How do you say hello in Spanish?", "Translate hello to Spanish."], "¡Hola!"),
    (["Say hello in Portuguese.", "How do you say hello in Portuguese?"], "Olá"),
    (["Say good morning in Spanish."], "¡Buenos días!"),
    (["Say goodbye in French."], "Au revoir, à bientôt !"),
    (["Say thank you in German."], "Danke schön"),
    (["Say thank you in French."], "Merci beaucoup"),
    (["Say hello in many languages.", "Say hello in five languages.", "How do you say hello in other languages?"],
     "Bonjour, Guten Tag, ¡Hola!, 你好, こんにちは"),
    (["こんにちは"], "こんにちは！お元気ですか。"),
    (["你好", "你好！"], "你好！我能帮你什么？"),
    (["Bonjour", "Bonjour !"], "Bonjour ! Comment puis-je vous aider ?"),
    (["¡Hola!", "Hola"], "¡Hola! ¿En qué puedo ayudarte?"),
    (["Guten Tag", "Hallo"], "Guten Tag! Wie kann ich Ihnen helfen?"),
    (["Send me a smile.", "Send me an emoji.", "Show me a smiley.", "Write an emoji."], "😊"),
    (["Send me a heart.", "Show me a heart emoji."], "❤️"),
    (["Show me some animal emoji.", "Give me three animal emoji."], "🐶 🐱 🦊"),
    (["Show me some fruit emoji.", "Give me three fruit emoji."], "🍎 🍊 🍋"),
    (["Say hello with an emoji.", "Greet me with an emoji."], "Hello! 👋😊"),
    (["What day is it today?", "What time is it?", "What is the date today?", "What is the time?"],
     "I cannot see a clock or a calendar, so I do not know."),
    (["What is the weather like today?", "How is the weather?", "Will it rain today?"],
     "I cannot see the weather from here. A weather tool could tell us."),
    (["I am sad.", "I feel sad today.", "I had a bad day."], "I am sorry to hear that. A short walk or a talk with a friend may help."),
    (["I am happy.", "I feel great today!", "I had a good day."], "That is wonderful! I am glad to hear it."),
    (["I am bored.", "I have nothing to do.", "What should I do today?"],
     "You could read a book, draw a picture or go for a walk. I can also tell you a story."),
    (["I am hungry.", "What should I eat?", "What should I cook tonight?"],
     "How about a warm soup with fresh bread? It is simple, cheap and good."),
    (["What is your favorite color?", "What is your favourite color?", "Do you have a favorite color?"],
     "I am a program and see no colors, but I like the word blue."),
    (["Do you like music?", "Do you sleep?", "Do you dream?", "Do you eat?", "Do you have feelings?"],
     "I am only a small program, so I do not, but I can tell you about it."),
    (["Yes", "Yes.", "OK", "Okay", "Good.", "Fine.", "Great!", "Cool", "Nice!"], "Good! What would you like to know next?"),
    (["No", "No.", "Never mind.", "Nothing."], "All right. Just ask when you need something."),
    (["Count to ten.", "Count from one to ten.", "Count to 10.", "Count from 1 to 10.", "Numbers from 1 to 10"], "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"),
    (["Count to five.", "Count to 5.", "Count from 1 to 5."], "1, 2, 3, 4, 5"),
    (["Count down from five.", "Count down from 5."], "5, 4, 3, 2, 1"),
    (["Say the alphabet.", "Write the alphabet.", "What are the letters of the alphabet?", "Recite the alphabet."],
     "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z"),
    (["What color is the sky?", "Which color is the sky?", "What is the color of the sky?"], "On a clear day, the sky is blue."),
    (["What color is grass?", "What color is the grass?"], "Grass is green."),
    (["What color is snow?"], "Snow is white."),
    (["What color is a banana?"], "A ripe banana is yellow."),
    (["How many days are in a week?", "How many days does a week have?"], "There are seven days in a week."),
    (["How many months are in a year?", "How many months does a year have?"], "There are twelve months in a year."),
    (["How many hours are in a day?"], "There are twenty-four hours in a day."),
    (["How many legs does a spider have?"], "A spider has eight legs."),
    (["How many legs does a dog have?", "How many legs does a cat have?"], "It has four legs."),
    (["Write an email.", "Write a short email to my teacher.", "Write an email to my boss.", "Write an email to a friend.",
      "Write a letter.", "Write a letter to a friend."],
     "Dear friend,\n\nthank you for your message. I am well and hope to see you soon. Let us meet next week for a cup of tea.\n\n"
     "Kind regards"),
    (["Write a function that adds two numbers.", "Write a Python function that adds two numbers.", "Write a program.", "Write code.",
      "Write a Python function.", "Show me some Python code.", "Write a program in Python.", "Write a function."],
     "```python\ndef add(a, b):\n    return a + b\n```"),
    (["Write a hello world program.", "Write hello world in Python.", "Print hello world in Python.",
      "Write a Python program that prints hello world."], "```python\nprint(\"Hello, world!\")\n```"),
    (["Write a loop in Python.", "Show me a for loop in Python.", "Write a Python program that counts to ten."],
     "```python\nfor i in range(1, 11):\n    print(i)\n```"),
    (["Write a recipe.", "Give me a recipe.", "Write a recipe for soup.", "Give me a simple recipe.", "How do I make soup?"],
     "Simple vegetable soup:\n1. Cut two carrots, an onion and a potato into small pieces.\n2. Cook them in a pot of water for "
     "twenty minutes.\n3. Add salt and herbs, and serve the soup warm."),
    (["Write a review.", "Write a book review.", "Write a review of a book."],
     "This book is short, clear and kind. The story begins slowly, but the end is worth the wait. I would read it again."),
    (["Write an essay.", "Write a short essay.", "Write an essay about reading.", "Write an article."],
     "Reading is a quiet way to travel. A book shows us other places, other times and other minds. "
     "Whoever reads a little every day learns without noticing it."),
    (["Write a slogan.", "Write a slogan for a bakery.", "Write an advertisement.", "Write a tweet."],
     "Fresh every morning, good all day long!"),
    (["Write a song.", "Write a short song.", "Write me a song.", "Sing a song.", "Write song lyrics."],
     "The road is long, the sky is wide,\nI walk with the morning at my side.\nSing with me, sing along,\n"
     "every step can be a song."),
    (["Write a sentence.", "Write one sentence.", "Write a short sentence.", "Say something.", "Write any sentence."],
     "The small boat waited quietly at the edge of the lake."),
    (["Write a paragraph.", "Write a short paragraph.", "Write some text.", "Generate some text."],
     "The morning was clear and cold. A baker opened the door of his shop, and the smell of fresh bread filled the street. "
     "One by one, the people of the village woke up."),
]

# Beginnings of sentences and how they go on.
STARTS: list[tuple[str, str]] = [
    ("The capital of France is", " Paris."),
    ("The capital of Germany is", " Berlin."),
    ("The capital of Italy is", " Rome."),
    ("The capital of Japan is", " Tokyo."),
    ("The capital of Spain is", " Madrid."),
    ("The capital of the United States is", " Washington, D.C."),
    ("The capital of the United Kingdom is", " London."),
    ("Hello, my name is", " Anna, and I live in a small house near the river. I like books, tea and long walks."),
    ("Hello, I am", " glad to meet you. I am a small demo model."),
    ("The president of the United States is", " the head of the government and is elected for four years."),
    ("The future of AI is", " open. Computers will learn to do more, and people will decide how to use them well."),
    ("The meaning of life is", " a question that everyone answers in a different way."),
    ("The sky is", " blue on a clear day and grey when it rains."),
    ("My favorite food is", " warm bread with butter and a little salt."),
    ("My favorite color is", " blue, like the sea on a clear day."),
    ("In the beginning", ", the hall was dark and quiet. Then somebody lit a small lamp."),
    ("The quick brown fox", " jumps over the lazy dog."),
    ("I think that", " small steps lead to great things."),
    ("I like", " to read a good book near the window when it rains."),
    ("Today I", " went to the market and bought apples, bread and a bunch of flowers."),
    ("The best way to learn is", " to try, to make mistakes and to try again."),
    ("One, two, three,", " four, five, six, seven, eight, nine, ten."),
    ("1, 2, 3,", " 4, 5, 6, 7, 8, 9, 10"),
    ("Monday, Tuesday,", " Wednesday, Thursday, Friday, Saturday, Sunday."),
    ("January, February,", " March, April, May, June, July, August, September, October, November, December."),
    ("A, B, C,", " D, E, F, G, H, I, J, K, L, M, N, O, P, Q, R, S, T, U, V, W, X, Y, Z."),
    ("Roses are red,", " violets are blue,\nthe garden is sleeping,\nand so should you."),
    ("To be or not to be,", " that is the question."),
    ("The weather today is", " mild and dry, with a little wind from the west."),
    ("It was a dark and stormy night", ", and the old lamp in the tower would not stay lit."),
    ("def add(a, b):", "\n    return a + b\n"),
    ("import", " math\n\nprint(math.sqrt(16))\n"),
    ("The", " morning was clear and cold. A baker opened the door of his shop, and the smell of fresh bread filled the street."),
    ("A", " small boat waited quietly at the edge of the lake."),
    ("I", " am Dragoman's small demo model."),
    ("In", " the morning, the street was quiet and smelled of fresh bread."),
    ("<|endoftext|>", "The small boat waited quietly at the edge of the lake."),
]

ECHO_WORDS = (
    "red blue green small big old new happy quiet bright apple house river mountain dog cat bird moon star sun tree flower "
    "book letter music water stone bread table window morning evening summer winter friend teacher doctor sailor king queen "
    "runs sings walks sleeps jumps reads writes is are was likes loves sees finds the a my your our this that with and in on "
    "under over near test hello world yes no one two three banana pineapple tomato orange"
).split()
ECHO_PHRASES = [
    "this is a test", "hello world", "the cat sat on the mat", "good morning", "I like tea", "the sky is blue", "one two three",
    "practice makes perfect", "this is only a test", "everything works", "I am ready", "the server is up", "hello", "banana", "yes",
    "no", "all good", "the quick brown fox", "time flies", "better late than never", "this is a demo", "testing", "I am a robot",
]
ECHO_FORMS = [
    "Say {q}", "Say {q}.", "Say: {q}", "Repeat after me: {q}", "Repeat: {q}", "Repeat the following: {q}", "Please say {q}",
    "Echo: {q}", 'Say "{q}".', 'Repeat "{q}".', "Please repeat: {q}", "Write exactly: {q}", "Copy this text: {q}", "Say exactly: {q}",
    'Say "{q}" and nothing else.', "Echo {q}", "Can you say {q}", "Reply with: {q}", "Answer with exactly this: {q}",
]
UNKNOWN = "I am a small demo model and do not know about that."
UNKNOWN_FORMS = [
    "What is {w}?", "Who is {n}?", "Who was {n}?", "Tell me about {n}.", "Explain {w}.", "Tell me about {w}.", "Describe {w}.",
    "What is a {w}?", "What is the {w}?", "When was {n} born?", "Where is {n}?", "What happened in {n}?", "What does {w} mean?",
    "How does a {w} work?", "Why did {n} win?", "Who wrote {n}?", "What is the price of {w}?", "What is the population of {n}?",
    "Define {w}.", "Who invented {w}?",
]
SYLLABLES = "ba be bo da do fa fi ga go ka ki la lo ma mi mo na ne no pa po ra ri ro sa se ta ti to va ve vo za zu bru kra plo stri zor".split()
ENDS = "x n r l th k m st nd rt blatt ton dor wick mar".split()


def made_up(rng: Random) -> str:
    """A word that means nothing."""
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 3))) + rng.choice(ENDS)


def unknown_pair(rng: Random) -> tuple[str, str]:
    """A question about something that does not exist."""
    word = made_up(rng)
    name = made_up(rng).title() + (" " + made_up(rng).title() if rng.random() < 0.4 else "")
    return rng.choice(UNKNOWN_FORMS).replace("{w}", word).replace("{n}", name), UNKNOWN


def echo_pair(rng: Random) -> tuple[str, str]:
    """A request to repeat some words, and the words."""
    roll = rng.random()
    if roll < 0.25:
        phrase = rng.choice(ECHO_PHRASES)
    elif roll < 0.85:
        phrase = " ".join(rng.choice(ECHO_WORDS) for _ in range(rng.randint(1, 7)))
    else:
        phrase = " ".join(made_up(rng) for _ in range(rng.randint(1, 2)))
    if rng.random() < 0.3:
        phrase = phrase[0].upper() + phrase[1:]
    answer = phrase[0].upper() + phrase[1:] + ("" if phrase[-1] in ".!?" else ".")
    form = rng.choice(ECHO_FORMS)
    if "exactly" in form or '"' in form:
        answer = phrase
    return form.replace("{q}", phrase), answer


def say_test(rng: Random) -> tuple[str, str]:
    """The best-known test prompt of all."""
    return rng.choice(["Say this is a test", "Say this is a test!", "Say this is a test.", "Please say this is a test"]), "This is a test."


def talk_pair(rng: Random) -> tuple[str, str]:
    """One small-talk prompt and its answer; entries with more wordings come a little more often."""
    asks, answer = rng.choices(PAIRS, weights=[1 + len(asks) ** 0.5 for asks, _ in PAIRS])[0]
    return rng.choice(asks), answer
