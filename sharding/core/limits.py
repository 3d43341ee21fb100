"""Every limit and default of the project, with its unit and its reason.

The end of a name is its unit: `_BYTES`, `_SECONDS`, or the thing that is counted. Sizes are decimal, as on the Hub:
"200MB" is 200 * 10**6 bytes. "MiB" and "GiB" are the binary units.
"""


# --- Files that somebody else wrote -------------------------------------------------------------------

MAX_HEADER_BYTES = 100_000_000
"""Largest safetensors header. The safetensors reader has the same limit (safetensors 0.8, `MAX_HEADER_SIZE`)."""

MAX_HEADER_DEPTH = 127
"""Deepest nesting of JSON in a header. The safetensors reader follows no more (serde_json stops at 128)."""

MAX_INDEX_BYTES = 100_000_000
"""Largest index. One of 300,000 tensors takes about 40 MB."""

MAX_CONFIG_BYTES = 10_000_000
"""Largest config.json. Real ones have kilobytes."""

MAX_CONFIG_VALUES = 500_000
"""Most JSON values in a config.json. One with the names of 21,000 classes has 42,000. Without this limit, three
million empty lists would take 240 MB."""

MAX_PATTERN_CHARACTERS = 5_000
"""Longest regular expression in an adapter_config.json. The longest known have about a thousand characters."""

PATTERNS_SECONDS = 5.0
"""Longest time to match all regular expressions of an adapter. Usual ones take less than a second for 100,000 names."""

MATCHER_BYTES = 256 << 20
"""Address space of the process that matches them. It takes 10 MB, and 20 MB for 100,000 names."""

MAX_REPEATS = 1000
"""Largest number in braces of such an expression. Compiling larger ones can take gigabytes."""

MAX_MATCHES = 2_000_000
"""Most matches of expressions with modules for one adapter. One with 400 expressions for 400 modules takes 320,000."""

MAX_ADAPTER_NAME = 500
"""Longest name of a tensor in an adapter, in characters. The longest known have about 120."""

LAYERS_TAKEN = 1000
"""Most layers that a config.json may claim without the tensors to match. The deepest known model has about 200.

The tensors may be only part of a model, so a claim below this limit is never refused.
"""

WORDS_TAKEN = 2_000_000
"""Largest vocabulary that a config.json may claim without a tensor to match. The largest known has 1,000,000 words."""

WIDTH_TAKEN = 1_000_000
"""Widest layer that a config.json may claim without a tensor to match. The widest known has 200,000 numbers."""

MODEL_MEMORY_BYTES = 2_000_000_000
"""Memory that building a model without weights may take on top of its libraries. The largest mixture of experts, with
300,000 tensors, takes 1.3 GB."""

MAX_DESCRIPTION_BYTES = 200_000_000
"""Longest description of such a model. A tensor takes 135 bytes, so this is enough for a million."""

LOAD_MEMORY_BYTES = 4_000_000_000
"""Memory that loading a model may take on top of its libraries and the two amounts below."""

LOAD_MEMORY_FACTOR = 10
"""Memory that loading a model may take for each byte of its weight files. It covers 4 bits that become 32."""

CORE_MEMORY_BYTES = 128 << 20
"""Memory that loading a model may take for the threads of each processor core."""

MAX_REPORT_BYTES = 100_000_000
"""Largest report. It names every tensor twice, as an index does."""

MAX_SHOWN_REPORT_BYTES = 16_000_000
"""Largest report that the page reads from a stranger's repo. One of 100,000 tensors has about 15 MB."""

MAX_SHOWN_REPORT_VALUES = 220_000
"""Most JSON values in such a report: enough for 100,000 tensors in a thousand files. The limit is needed because a
million zeros take little space in a file and much memory."""

MAX_SHOWN_DIGESTS_VALUES = 1_000_000
"""Most JSON values in the stored digests that the page reads from a stranger's repo: enough for 100,000 tensors."""

MAX_METADATA_BYTES = 500_000
"""Longest metadata of a model card. Evaluation results fill hundreds of kilobytes, and more takes long to parse."""

MAX_METADATA_VALUES = 100_000
"""Most values in the metadata of a model card. More take long to parse."""

MAX_METADATA_DEPTH = 20
"""Deepest nesting in the metadata of a model card. Deeper metadata takes long to parse."""

MAX_CARD_BYTES = 1_000_000
"""Longest model card whose text goes into the card of the copy. Real ones have kilobytes."""

MAX_SIDE_FILE_BYTES = 500_000_000
"""Largest side file. Tokenizers reach tens of megabytes; a larger file is a data set or weights with another name."""

MAX_SIDE_FILES_BYTES = 5_000_000_000
"""Most bytes in all side files that this machine must copy. More is a data set. Files in the Hub's store do not count,
because the Hub copies them."""

MAX_FILES = 100_000
"""Most files in a source. The Hub advises against larger repos."""

MAX_NAME_CHARACTERS = 4096
"""Longest name of a file or a tensor. A Linux path has no more bytes, and tensor names have some tens of characters.
Regular expressions search every name and pages show it, so a name of megabytes would stall both."""

MAX_TENSORS = 1_000_000
"""Most tensors in a checkpoint: three times as many as the largest known mixtures of experts have. A million take half
a gigabyte of memory."""

MAX_PAGE_TENSORS = 100_000
"""Most tensors in a checkpoint that a page shows in full. They take a second of one core and 100 MB. For more, another
process counts them."""

MAX_PAGE_WEIGHT_BYTES = 600_000_000
"""Most bytes of weights that a page reads to know what a merge would do, for example if no Hub states the SHA-256 of
the adapter's file. This takes seconds, so it is done for one visitor at a time. Otherwise a page reads headers only."""

PAGE_WEIGHT_BYTES = 10_000_000
"""Bytes of such weights that a page reads for anybody at once."""

TENSOR_DESCRIPTION_BYTES = 160
"""Upper estimate of what a header or an index holds for each tensor. A header has about 110 bytes, an index 130."""

MAX_PICKLE_BYTES = 32_000_000
"""Largest pickle in a .bin file. A tensor takes 200 bytes, so this is enough for 160,000 tensors."""

MAX_PICKLE_STEPS = 1_500_000
"""Most instructions of that pickle. A tensor takes 37, so this is enough for 40,000 tensors. As many hostile
instructions take 140 MB and a few seconds."""

MAX_PICKLE_MARKS = 1000
"""Deepest nesting in a pickle. Checkpoints are nested three or four deep."""

MAX_DCP_BYTES = 64_000_000
"""Largest `.metadata` file of a distributed checkpoint. A piece of a tensor takes 200 bytes, so this is enough for
300,000 pieces, including those of the optimizer."""

MAX_DCP_STEPS = 20_000_000
"""Most pickle instructions of that file. A piece takes 67. As many hostile instructions take two gigabytes."""

MAX_BOX_LOOKS = 8_000_000
"""Most comparisons to find pieces of tensors that overlap; they take ten seconds at most. Cuts along two dimensions
take three comparisons a piece, so this is enough for two million pieces."""

MAX_DIMENSIONS = 64
"""Most dimensions of a tensor. numpy has the same limit."""

MAX_DIRECTORY_BYTES = 16_000_000
"""Largest directory of the archive that a .bin file is. It has about 80 bytes for each tensor."""

MAX_EXPANDED_BYTES = 1_000_000_000
"""Bytes that tensors may add to the size of a file by sharing their bytes. Real ones are masks and position numbers."""

MAX_NAMES_OF_A_TENSOR = 4
"""How often the bytes of a file may count in its tensors. One tensor can be the embeddings of an encoder, those of a
decoder, what both share, and an output head. In a small model it can be nearly all of the file."""

# --- Buffers ------------------------------------------------------------------------------------------

BATCH_BYTES = 2 << 20
"""Bytes that are read, hashed and written at once. With larger batches Python's share of the work is small."""

SPAN_BYTES = 64 << 20
"""Bytes that one thread reads from a file in one stream to verify a checkpoint."""

JOIN_GAP_BYTES = 64 << 10
"""Largest gap between two ranges that are read as one. Another request costs more than 64 KiB that nobody uses."""

BATCHES_AHEAD = 2
"""Batches of a shard that are fetched early, so that the network does not wait for the hashes. This number and
`THREADS` limit the memory of a job."""

FETCHED_BYTES = 48 << 20
"""Most bytes that all shards of a job have fetched and not yet written. Each shard may have one batch more."""

COMPARED_BYTES = 24 << 20
"""Most bytes of both sides that are read to compare their numbers, and not yet compared. Each side may have one batch
more."""

TILE_BYTES = 16 << 20
"""Bytes of a tensor that are put in order at once, if it is not stored in order. Each tile reads through the tensor
once."""

GATHERED_SPAN_BYTES = 4 << 20
"""Bytes that are read at once for a tile. In a transposed tensor, a tile takes a few columns of neighbouring rows."""

MERGED_BYTES = 512 << 10
"""Bytes of a weight to which an update is added at once. The sums and products take ten times as many."""

MAX_UPDATE_BYTES = 1 << 30
"""Most memory for both matrices of a low-rank update, as float32. Rank 64 of 256,000 embeddings takes 67 MB."""

MAX_EXPERT_BYTES = 4 << 20
"""Most scales of one expert in MXFP4, which is transposed as a whole. Its numbers take 16 times as many bytes. gpt-oss
has 518,400."""

PAGE_BYTES = 256 << 10
"""Bytes that are read at once from the scales of quantized weights. The scales of a file usually lie together, so one
request fetches many. A request for each would double the requests of a job."""

PAGES_BYTES = 16 * PAGE_BYTES
"""Bytes of those scales that stay in memory. Scales are about a four-thousandth of the file."""

FLUSH_BYTES = 32 << 20
"""Unwritten bytes that start a write-back to the disk, so that the sync at the end of a shard is short."""

THREADS = 2
"""Shards that are written side by side, reads that are fetched early, and files that are verified side by side. The
free Space has two cores, and more threads only add buffers."""

DISK_FLOOR_BYTES = 64_000_000
"""Bytes that stay free on the disk beside the result, for side files, reports and the machine itself."""

PROGRESS_SECONDS = 0.1
"""Shortest time between two progress events: fast enough for the eye, slow enough for a log."""

PROGRESS_FILES = 64
"""Most files in one progress event. The others follow in the next."""

LAST_SECONDS = 2.0
"""Longest time that a job which ends early waits for its threads. A disk or a Hub may hang."""

DEFAULT_MAX_SHARD_SIZE = "5GB"
"""Default shard size. `huggingface_hub.save_torch_state_dict` has the same."""

# --- Comparisons --------------------------------------------------------------------------------------

ROUNDS = 3
"""Loads of each checkpoint in a comparison: enough for a median that one slow load does not move."""

CURVE_MOMENTS = 160
"""Most points of a memory curve: as many as a picture can show, and few enough for a report."""

MEMORY_SHARE = 0.85
"""Largest share of the free memory that a load may be expected to take. Beyond it the kernel may kill processes."""

ARCHITECTURE_SECONDS = 300
"""Longest time to ask transformers about a model. Importing it from a cold disk and building the largest model on the
meta device take much less."""

# --- The Hub ------------------------------------------------------------------------------------------

XET_BUFFER_BYTES = 64 << 20
"""Bytes that hf-xet may fetch ahead. Its own defaults buffer gigabytes."""

XET_UPLOADS_AT_ONCE = 2
"""Packages that hf-xet may upload side by side. Each takes up to 64 MB of memory. Its default is up to 64 packages."""

XET_LEAST_BYTES = 128 << 10
"""Shortest range that is read with hf-xet. Shorter ones (headers, configurations) are faster over plain HTTP."""

HUB_BATCH_BYTES = 8 << 20
"""Bytes that one request to a Hub asks for. A shard then takes a few dozen requests, and the buffers fit in memory."""

HUB_JOIN_GAP_BYTES = 512 << 10
"""Largest gap between two ranges of a Hub's file that are read as one. Another request costs tens of milliseconds."""

REACHED_COMMITS = 5000
"""Most commits of a repo to search for a commit that somebody named. Few repos of models have thousands."""

REACHED_REFS = 50
"""Most branches and tags to search for that commit. Each takes at least one request, and most repos of models have a
few."""

RANGES_AT_ONCE = 32
"""Ranges of one batch, or headers, that are requested side by side. They are kilobytes each, so only the round trips
count."""

COMMITTED_BYTES = 20_000_000
"""Most bytes of side files in a commit itself, where they are in base64 and several times in memory. The tokenizers
that repos keep in git are smaller. Beyond this limit the largest files go to the store."""

COMMIT_SECONDS = 60.0
"""Shortest time between two commits that note finished shards on the staging branch. The first shard is noted at once,
the others together. The Hub takes 128 commits an hour from one user, and you may have other work to push."""

NETWORK_TRIES = 6
"""Attempts at a request, and attempts at a read after the last byte arrived."""

NETWORK_WAIT_SECONDS = 0.25
"""Half the wait before the second attempt. The wait doubles with each attempt."""

READ_TIMEOUT_SECONDS = 30
"""Longest silence while a file is read. After it, a new connection continues the read."""

ANSWER_TIMEOUT_SECONDS = 100
"""Longest wait for any other answer. The Hub itself gives up on a commit after 60 seconds."""

LONGEST_WAIT_SECONDS = 300
"""Longest wait that a server may ask for with Retry-After. The Hub counts requests in windows of five minutes."""

ANSWERS_TIMED = 3
"""Small questions to a Hub that are timed, one after another. The first may wait for a connection."""

MAX_TOKEN_BYTES = 10_000
"""Largest file of a saved login. A token of an application has a thousand characters or two."""

MAX_STORED_TOKENS_BYTES = 1_000_000
"""Largest file with all saved logins and the tokens that renew them."""

MAX_ANSWER_BYTES = 64_000_000
"""Longest answer of a Hub to one question, including all pages of a list. 100,000 files take 40 MB. Files that are read
have other limits."""

MAX_ANSWER_VALUES = 3_000_000
"""Most JSON values in such an answer. 100,000 files take 1,500,000."""

MAX_ANSWER_HEADER_BYTES = 1_000_000
"""Most bytes before the body of an answer, including interim answers (status 1xx)."""

LONGEST_ANSWER_SECONDS = 300
"""Longest time that a Hub may take to send such an answer. 64 MB arrive in time at 1.7 Mbit/s."""

MAX_PAGES = 2000
"""Most pages of a list. 100,000 files are 100 pages."""

LISTING_SECONDS = 1800
"""Longest time for all pages of a list."""

LEAST_SECONDS = 60
"""Time in which at least `LEAST_BYTES` of a file must arrive. If fewer arrive, they are requested again."""

LEAST_BYTES = 64_000
"""Fewest bytes of a file that must arrive in `LEAST_SECONDS`. With 32 reads side by side, that needs 35 kB/s."""

# --- Many machines --------------------------------------------------------------------------------------

TOLD_SECONDS = 1.0
"""Time between two progress messages of a worker. A thousand workers then send a thousand messages a second."""

ATTEMPTS = 3
"""Attempts at a part whose worker dies or whose access expires. What fails three times is no accident."""

GRANT_MARGIN_SECONDS = 30.0
"""Time before its end at which hf-xet 1.8 takes a grant for expired. It would then ask for another, which needs a
login."""

LONGEST_GRANT_SECONDS = 24 * 3600
"""Longest time that a grant is used, even if it states a longer one. The Hub's own are valid for minutes or hours."""

WORKERS_SECONDS = 60.0
"""Longest time that a job waits for a cluster without any processor. After it, a job with no running part ends."""

ANSWER_SECONDS = 10.0
"""Longest time that the head node of a cluster may take to answer."""

LEASE_SECONDS = 60.0
"""Silence of a job after which another machine may take over its shared folder."""

# --- Many visitors on one machine -----------------------------------------------------------------------

KEEP_SECONDS = 24 * 3600
"""Time that the output of a job is kept, so that its link works the next day."""

SHARED_JOB_BYTES = 50_000_000_000
"""Largest job of a visitor on somebody else's Space, because others wait for it. Your own Space has no such limit."""

EVENT_BYTES = 64_000_000
"""Longest event of a job. A plan of 100,000 tensors prints about 20 MB."""

EVENTS_BYTES = 4 * EVENT_BYTES
"""Most bytes in all events of a job: a plan, a report, and days of progress once a second."""

LOG_LINES = 500
"""Most lines of a job's log. The oldest are dropped first."""

STDERR_BYTES = 8 << 10
"""Bytes that are kept of what a broken job printed: enough to see why it broke."""

STOP_SECONDS = 5.0
"""Time that a job gets to stop before it is killed."""

MAX_ACTIVE_JOBS = 100
"""Most jobs that are queued or running. Each keeps its plan in memory, and a hundred jobs take days."""

JOB_SECONDS = 24 * 3600
"""Longest time that a job runs, so that other jobs get their turn. You can resume it. At 50 GB, the largest job of a
visitor, that is half a megabyte a second."""

SILENT_SECONDS = 30 * 60
"""Longest silence of a job before it counts as hung. The longest pause in a sound job is the commit at its end."""

HUB_JOB_ANON_BYTES = 427_000_000
"""Measured peak of anonymous memory in a job between two Hub repos. The job copied 3 GB in shards of 1 GB over a slow
upload, and the Hub's store had none of the bytes before."""

CLASSIC_TIMES = 2.3
"""How many times as long loading and saving takes as streaming: 2.1 to 2.6 in bench/RESULTS.md, without a network."""

HUB_JOB_BYTES_PER_SECOND = 250_000_000
"""Rate of a job between two Hub repos on two cores of another machine, for a machine that cannot be measured."""

JOB_ANSWERS = 40
"""Requests of a job that wait for one another, as a Hub's log counts them: the login, both repos, branches, commits."""

SHARD_ANSWERS = 2
"""Requests of a job that wait for one another, for each file that it writes."""

GAUGED_BYTES = 32 << 20
"""Bytes that are stored and read to measure this machine. They take half a second."""

GAUGE_SECONDS = 20.0
"""Longest time to measure this machine. A sound one takes one to two seconds."""

JOBS_REMEMBERED = 100
"""Finished jobs that forecasts of cost are based on."""

DISCARD_SECONDS = 120.0
"""Longest time to remove what a cancelled job staged, because the queue waits for it. It takes a few requests."""

SWEEP_SECONDS = 60.0
"""Time between two searches of the desk for data to delete."""

TIDY_SECONDS = 5.0
"""Time after which free memory is given back to the system. Three models of 95,000 tensors left 450 MB of it."""

PROGRESS_KEPT_SECONDS = 1.0
"""Shortest time between two progress events that are kept on the disk. The newest is always in memory."""

VIEW_SECONDS = 0.2
"""Shortest time between two views of a job, because nobody reads faster."""

PERSON_SECONDS = 60.0
"""Time that the answer to "whose token is this?" is kept. A page needs it every second; the Hub is asked less often."""

CACHED_SECONDS = 10 * 60
"""Time after which the headers of a checkpoint are read again."""

CACHED_CHECKPOINTS = 64
"""Most checkpoints in the memory of the page."""

CACHED_TENSORS = 100_000
"""Most tensors in the memory of the page. They take about 100 MB."""

LARGE_PLAN_TENSORS = 20_000
"""Tensors from which a plan is large. Such a plan takes most of a second, so only one is made at a time."""

CACHED_ANSWERS = 256
"""Most answers of transformers that are kept, refusals included. Asking again takes seconds."""

QUESTIONS_WAITING = 5
"""Most questions to transformers that wait for the current one, because each takes seconds. More are refused at
once."""

QUESTION_SECONDS = 30.0
"""Longest time that a question of a page to transformers may take. A sound model takes five to ten seconds."""

MAX_BODY_BYTES = 1_000_000
"""Largest body of a request to the page. Its own requests have a few kilobytes at most."""

BODY_SECONDS = 30.0
"""Longest time that the body of a request may take to arrive."""

MAX_TOOL_BYTES = 16_000
"""Largest body of a call of a tool (MCP). A call has a few kilobytes at most."""

MAX_TOOL_CALLS = 16
"""Most calls of tools at once. Gradio 6.31 keeps one of the page's forty threads waiting for each."""

PICTURE_SECONDS = 20.0
"""Longest time that a request waits for the badge or the picture of a result. What is drawn later is for the next."""

PATIENT_THREADS = 24
"""Threads for requests to a Hub. They are separate, so that a slow Hub leaves the page the threads it needs."""

MAX_WATCHERS = 8
"""Most windows in which one person may watch jobs. Each takes one of `MAX_CALLS` while the job runs."""

MAX_QUERY_BYTES = 8000
"""Longest query of an address of the page. A link holds a few names and choices."""

MAX_PATH_CHARACTERS = 500
"""Longest path of an address of the page."""

MAX_LINK_CHARACTERS = 2000
"""Longest name of a repo, or link to it. Names have up to 96 characters, branches at most a few hundred."""

MAX_CALLS = 300
"""Most calls of all visitors that the page works on at once. Watching a job is such a call."""

MAX_CALLS_WAITING = 200
"""Most calls that wait for the page. It asks further visitors to come back later."""

MAX_SESSIONS_KEPT = 500
"""Most sessions whose answers the page keeps until somebody fetches them."""

UNFETCHED_BYTES = 32_000_000
"""Most bytes of answers that the page keeps until somebody fetches them."""

UNFETCHED_SECONDS = 120.0
"""Longest time that the page keeps answers that nobody fetches."""

QUIET_SECONDS = 60.0
"""Time after the last answer at which the page's stream of answers ends."""

OVERVIEW_SECONDS = 30.0
"""Longest time to count a checkpoint that is too large for the page. A million tensors take half of it."""

OVERVIEW_BYTES = 4_000_000_000
"""Memory that the process which counts such a checkpoint may take. A million tensors take a third of it."""

MAX_OVERVIEW_BYTES = 4_000_000
"""Longest answer of that process: counts, the files, and a picture of at most 800 rectangles."""
