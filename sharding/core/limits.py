"""Every limit, default and unit of the project, each with its reason.

Sizes are decimal as on the Hub: "200MB" is 200 * 10**6 bytes. "MiB" and "GiB" are the binary units.
"""


# --- What is read from files that somebody else wrote -------------------------------------------------

MAX_HEADER_BYTES = 100_000_000
"""The safetensors reader's own bound on one header (safetensors 0.8, `MAX_HEADER_SIZE`)."""

MAX_HEADER_DEPTH = 127
"""Deepest JSON nesting the safetensors reader follows (serde_json's recursion limit is 128)."""

MAX_INDEX_BYTES = 100_000_000
"""An index of 300,000 tensors takes about 40 MB; beyond this it is no index."""

MAX_CONFIG_BYTES = 10_000_000
"""Configurations are kilobytes; a larger one is not worth the memory."""

MAX_CONFIG_VALUES = 500_000
"""Values in such a configuration: 21,000 names of classes, twice, are 42,000. Three million empty lists take 240 MB."""

LAYERS_TAKEN = 1000
WORDS_TAKEN = 2_000_000
WIDTH_TAKEN = 1_000_000
"""What a config.json may claim whatever the tensors beside it are, which may be part of a model: the deepest known
model has some 200 layers, the largest vocabulary 1,000,000 words, the widest layer 200,000 numbers."""

MODEL_MEMORY_BYTES = 2_000_000_000
"""What a model built without weights may map, beyond the libraries: one of 300,000 tensors, the largest mixture of
experts, takes 1.3 GB."""

MAX_DESCRIPTION_BYTES = 200_000_000
"""What may be said of such a model: 135 bytes a tensor, so a million of them."""

LOAD_MEMORY_BYTES = 4_000_000_000
LOAD_MEMORY_FACTOR = 10
CORE_MEMORY_BYTES = 128 << 20
"""What loading a model may map, beyond the libraries: so many times its weight files, which covers 4 bits that become
32, and so much more, with so much for the threads of each core."""

MAX_REPORT_BYTES = 100_000_000
"""A report names every tensor twice, as an index does."""

MAX_SHOWN_REPORT_BYTES = 16_000_000
"""What the page reads of a report in a stranger's repo: one of 100,000 tensors has about 15 MB."""

MAX_SHOWN_REPORT_VALUES = 220_000
"""Values in such a report: 100,000 tensors in a thousand files. A million zeros would cost more than their bytes."""

MAX_METADATA_BYTES = 500_000
MAX_METADATA_VALUES = 100_000
MAX_METADATA_DEPTH = 20
"""What is read of a card's metadata: results of evaluations fill hundreds of kilobytes. More would take long."""

MAX_CARD_BYTES = 1_000_000
"""Cards are kilobytes; of a longer one nothing is kept but the file in the source."""

MAX_SIDE_FILE_BYTES = 500_000_000
"""Tokenizers reach tens of megabytes; what is larger is data or weights under another name."""

MAX_SIDE_FILES_BYTES = 5_000_000_000
"""All side files that no Hub copies by itself: what is more is a data set, and is moved after the proof."""

MAX_FILES = 100_000
"""The Hub advises against repositories with more files than this."""

MAX_NAME_CHARACTERS = 4096
"""The longest name of a file or a tensor: a path of Linux has no more bytes, and names of tensors have some tens of
characters. Regular expressions search every name, and pages show it: one of megabytes would stall both."""

MAX_TENSORS = 1_000_000
"""Three times what the largest known mixtures of experts have; a million take half a gigabyte of memory."""

MAX_PAGE_TENSORS = 100_000
TENSOR_DESCRIPTION_BYTES = 160
"""What a page reads of a checkpoint that it shows in full, for a second of one core and 100 MB; larger ones are counted
in another process. A header has about 110 bytes for a tensor, an index about 130."""

MAX_PICKLE_BYTES = 32_000_000
MAX_PICKLE_STEPS = 1_500_000
MAX_PICKLE_MARKS = 1000
"""The pickle of a .bin file: 37 instructions and 200 bytes a tensor, so 40,000 tensors; a hostile one of so many
instructions takes 140 MB and a few seconds. Checkpoints are nested three or four deep."""

MAX_DCP_BYTES = 64_000_000
MAX_DCP_STEPS = 20_000_000
"""The `.metadata` of a checkpoint of ranks: 200 bytes and 67 instructions a piece, so 300,000 pieces with those of the
optimizer; a hostile one of so many instructions takes two gigabytes."""

MAX_BOX_LOOKS = 8_000_000
"""How often pieces of a checkpoint are looked at along a dimension, to tell whether any overlap: ten seconds at most.
Cuts along two dimensions take three looks a piece, so this is enough for two million pieces."""

MAX_DIMENSIONS = 64
"""As many as a tensor has in numpy."""

MAX_DIRECTORY_BYTES = 16_000_000
"""The directory of a .bin file has about 80 bytes for each of its tensors."""

MAX_EXPANDED_BYTES = 1_000_000_000
"""What tensors that share their bytes may add to the size of a file: real ones are masks and position numbers."""

MAX_NAMES_OF_A_TENSOR = 4
"""How often a whole file may be in its tensors: embeddings of an encoder and a decoder, what they share, and an output
head may be one tensor, which has nearly all bytes of a small model."""

# --- Buffers ------------------------------------------------------------------------------------------

BATCH_BYTES = 2 << 20
"""What is read, hashed and written in one go: large enough that Python's share of the work is small."""

SPAN_BYTES = 64 << 20
"""What one thread reads of a file in one stream when a checkpoint is verified."""

JOIN_GAP_BYTES = 64 << 10
"""Two ranges closer than this are read as one: a request costs more than 64 KiB of bytes thrown away."""

BATCHES_AHEAD = 2
"""Batches of a shard fetched before they are needed, so that the network does not wait for the hashes. With the number
of shards that are moved at a time, `THREADS`, this bounds the memory of a job."""

FETCHED_BYTES = 48 << 20
"""What all shards of a job together have fetched and not yet written; each may have one batch more."""

TILE_BYTES = 16 << 20
"""What is laid in order at a time of a tensor that does not lie in order: each time its bytes are read through once."""

GATHERED_SPAN_BYTES = 4 << 20
"""What is read at a time for that: of a transpose, rows that lie together, of which a tile takes a few columns."""

MAX_EXPERT_BYTES = 4 << 20
"""Scales of one expert in MXFP4, which is transposed as a whole: 16 times that are its numbers. gpt-oss has 518,400."""

PAGE_BYTES = 256 << 10
PAGES_BYTES = 16 * PAGE_BYTES
"""What is read at a time of the scales of quantized weights, and what is kept of it: those of a file usually lie
together, a four-thousandth of its size, and a request for each would double the requests of a job."""

FLUSH_BYTES = 32 << 20
"""Dirty bytes after which write-back is started, so that the sync at the end of a shard is short."""

THREADS = 2
"""Shards that are moved at a time, reads ahead, files that are verified: two cores on the free Space; more threads only
add buffers."""

DISK_FLOOR_BYTES = 64_000_000
"""Left free on the disk beside the result: side files, reports and the machine's own needs."""

PROGRESS_SECONDS = 0.1
"""Shortest time between two progress events: fast enough for the eye, slow enough for a log."""

LAST_SECONDS = 2.0
"""What a job that ends early gives its threads to let go of what they write: a disk or a Hub may hang."""

DEFAULT_MAX_SHARD_SIZE = "5GB"
"""The default of `huggingface_hub.save_torch_state_dict`."""

# --- Comparisons --------------------------------------------------------------------------------------

ROUNDS = 3
"""Loads of each side: enough for a median that one slow run does not move."""

CURVE_MOMENTS = 160
"""Points of a memory curve that are kept: as many as a picture can show, few enough for a report."""

MEMORY_SHARE = 0.85
"""Of the memory that is free now, what a load may be expected to take; beyond it the kernel may kill others."""

ARCHITECTURE_SECONDS = 300
"""Importing transformers on a cold disk and building the largest model on the meta device stay well below."""

# --- The Hub ------------------------------------------------------------------------------------------

XET_BUFFER_BYTES = 64 << 20
"""What hf-xet may fetch ahead; its own defaults buffer gigabytes."""

XET_UPLOADS_AT_ONCE = 2
"""Packages of up to 64 MB that hf-xet may have on their way to the store, each in memory; by itself up to 64."""

XET_LEAST_BYTES = 128 << 10
"""Shorter ranges (headers, configurations) are quicker over plain HTTP than through a reconstruction."""

HUB_BATCH_BYTES = 8 << 20
"""What one request to a Hub asks for: a few dozen requests a shard, and as many buffers as memory allows."""

HUB_JOIN_GAP_BYTES = 512 << 10
"""The same as JOIN_GAP_BYTES for a Hub, where a request costs a round trip: tens of milliseconds."""

REACHED_COMMITS = 5000
REACHED_REFS = 50
"""Commits of a repo, and branches and tags, that are looked through for a commit that somebody named. Each ref takes an
answer of the Hub at least. Repos of models have tens of commits and a few refs, few of them thousands of commits."""

RANGES_AT_ONCE = 32
"""Ranges of one batch, or headers, asked for side by side: kilobytes each, so that only the round trips count."""

COMMITTED_BYTES = 20_000_000
"""Side files that one commit carries in itself, in base64 and several times in memory: tokenizers in git have less. The
largest of what is more go to the store."""

COMMIT_SECONDS = 60.0
"""The first shard of a job is noted on the staging branch as soon as it is finished, the others at most once a minute,
several together. The Hub takes 128 commits an hour of one user, and a person has other work to push."""

NETWORK_TRIES = 6
NETWORK_WAIT_SECONDS = 0.25
"""Attempts at a request, at a read since its last byte, and half the first wait between two; it doubles."""

READ_TIMEOUT_SECONDS = 30
"""Longest silence while a file is read: then the connection is given up, and the read taken up again."""

ANSWER_TIMEOUT_SECONDS = 100
"""Longest wait for any other answer: the Hub itself gives up on a commit after 60 seconds."""

LONGEST_WAIT_SECONDS = 300
"""What a server may ask for with Retry-After: the Hub counts requests in windows of five minutes."""

MAX_TOKEN_BYTES = 10_000
"""The file with the saved login: a token of an application has a thousand characters or two."""

MAX_STORED_TOKENS_BYTES = 1_000_000
"""The file beside it, with every login that was ever saved and what renews it."""

MAX_ANSWER_BYTES = 64_000_000
MAX_ANSWER_VALUES = 3_000_000
"""All that a Hub answers to one question, every page of a list together: 100,000 files take 40 MB and 1,500,000 values.
A file that is read has other bounds."""

MAX_ANSWER_HEADER_BYTES = 1_000_000
"""What may come before the body of an answer, with all that is only said meanwhile (status 1xx)."""

LONGEST_ANSWER_SECONDS = 300
"""How long such an answer may take from its first byte to its last: 64 MB at 1.7 Mbit/s."""

MAX_PAGES = 2000
LISTING_SECONDS = 1800
"""How many pages a list may have, and how long all of them may take: 100,000 files are 100 pages."""

LEAST_SECONDS = 60
LEAST_BYTES = 64_000
"""A file of which fewer bytes come in so long is asked for again: with 32 reads side by side, of a line of 35 kB/s."""

# --- Many machines --------------------------------------------------------------------------------------

TOLD_SECONDS = 1.0
"""How often a worker says how far it is: a thousand of them are a thousand messages a second."""

ATTEMPTS = 3
"""How often a part is begun whose worker dies or whose access ends: what fails thrice is no accident."""

GRANT_MARGIN_SECONDS = 30.0
"""So long before its end hf-xet 1.8 takes a grant as ended: it would ask for another, which takes a login."""

LONGEST_GRANT_SECONDS = 24 * 3600
"""A grant that says it holds longer is asked for anew after a day: the Hub's own holds for minutes or hours."""

WORKERS_SECONDS = 60.0
"""How long a cluster may have no processor at all: then a job that has nothing under way ends."""

ANSWER_SECONDS = 10.0
"""How long the head node of a cluster may take to answer at all."""

LEASE_SECONDS = 60.0
"""After what silence of its job a folder that machines share may be taken over from another machine."""

# --- Many visitors on one machine -----------------------------------------------------------------------

KEEP_SECONDS = 24 * 3600
"""How long what a job said is kept, so that its link works again the next day."""

SHARED_JOB_BYTES = 50_000_000_000
"""Largest job of a visitor on somebody else's Space: others wait behind it. One's own Space has no such limit."""

EVENT_BYTES = 64_000_000
"""Longest event of a job: a plan of 100,000 tensors prints about 20 MB."""

EVENTS_BYTES = 4 * EVENT_BYTES
"""All that a job may say: a plan, a report, and days of progress once a second."""

LOG_LINES = 500
"""What a visitor may want to read of a job; the oldest go first."""

STDERR_BYTES = 8 << 10
"""Enough of what a broken job printed to see why."""

STOP_SECONDS = 5.0
"""A job that was told to end gets this long to do so before it is killed."""

MAX_ACTIVE_JOBS = 100
"""Queued or running: each keeps its plan in memory, and who comes after a hundred others waits for days."""

JOB_SECONDS = 24 * 3600
"""A job that has run so long is stopped, so that the others get their turn; it can be resumed. At 50 GB, the largest
of a visitor, that is half a megabyte a second."""

SILENT_SECONDS = 30 * 60
"""A job that has said nothing for so long hangs; the longest pause in a sound one is the commit at its end."""

HUB_JOB_ANON_BYTES = 427_000_000
"""Peak anonymous memory of a job between two Hub repos as measured: 3 GB in shards of 1 GB, a slow upload, and nothing
in the Hub's store before."""

JOBS_REMEMBERED = 100
"""Finished jobs whose cost forecasts rest on."""

DISCARD_SECONDS = 120.0
"""Removing what a cancelled job staged takes a few requests; no longer than this may it hold up the queue."""

SWEEP_SECONDS = 60.0
"""How often the desk looks for what may be thrown away."""

TIDY_SECONDS = 5.0
"""How often memory that is free is given back to the system: three models of 95,000 tensors left 450 MB of it."""

PROGRESS_KEPT_SECONDS = 1.0
"""Progress is kept once a second; the newest is always in memory."""

VIEW_SECONDS = 0.2
"""Shortest time between two views of a job: nobody reads faster."""

PERSON_SECONDS = 60.0
"""A page asks every second whose job it shows; the Hub need not be asked as often."""

CACHED_SECONDS = 10 * 60
CACHED_CHECKPOINTS = 64
CACHED_TENSORS = 100_000
"""Headers are read again after ten minutes; a hundred thousand tensors take about 100 MB of memory."""

LARGE_PLAN_TENSORS = 20_000
"""A plan of so many tensors takes most of a second; such plans are made in turn."""

CACHED_ANSWERS = 256
"""What transformers said of models that visitors looked at, refusals among it: seconds to ask anew."""

QUESTIONS_WAITING = 5
"""Questions to transformers that wait for the one in work: each takes seconds. Who comes later is told so at once."""

QUESTION_SECONDS = 30.0
"""Longest time that a question of a page may take: a sound model takes five to ten seconds."""

MAX_BODY_BYTES = 1_000_000
BODY_SECONDS = 30.0
"""What a request to the page may bring, and how long that may take: its longest has a few kilobytes."""

MAX_TOOL_BYTES = 16_000
MAX_TOOL_CALLS = 16
"""The same for the call of a tool (MCP), and how many may be on their way: Gradio 6.31 keeps a thread waiting for each,
of the forty that the page has."""

PATIENT_THREADS = 24
"""What asks a Hub has threads of its own, so that a slow Hub leaves the page those that it needs."""

MAX_WATCHERS = 8
"""Windows in which one person may watch jobs: each takes one of `MAX_CALLS` for as long as the job runs."""

MAX_QUERY_BYTES = 8000
MAX_PATH_CHARACTERS = 500
"""The longest address of the page: a link holds a few names and choices."""

MAX_LINK_CHARACTERS = 2000
"""The longest name of a repo, or link to it, that is read: names have 96 characters, branches at most a few hundred."""

MAX_CALLS = 300
MAX_CALLS_WAITING = 200
"""Calls of all visitors that the page attends to at a time, the watching of a job among them, and that wait for it; who
comes after these is told to come again."""

MAX_SESSIONS_KEPT = 500
UNFETCHED_BYTES = 32_000_000
UNFETCHED_SECONDS = 120.0
"""What is kept of answers that nobody fetches: so many sessions, so many bytes, so long."""

OVERVIEW_SECONDS = 30.0
OVERVIEW_BYTES = 4_000_000_000
"""What the process may take that counts a checkpoint too large for the page: a million tensors take half of the time
and a third of the memory."""

MAX_OVERVIEW_BYTES = 4_000_000
"""What it answers: counts, the files, and a picture of at most 800 rectangles."""
