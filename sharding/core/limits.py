"""Every limit and default of the project, with its unit and its reason.

The end of a name is its unit: `_BYTES`, `_SECONDS`, or the thing that is counted. Sizes are decimal, as on the Hub:
"200MB" is 200 * 10**6 bytes. "MiB" and "GiB" are the binary units.
"""

# --- Files that somebody else wrote -------------------------------------------------------------------

MAX_HEADER_BYTES = 100_000_000  # Largest safetensors header, as in safetensors 0.8 (`MAX_HEADER_SIZE`).
MAX_HEADER_DEPTH = 127  # Deepest nesting of JSON in a header, as in the safetensors reader (serde_json stops at 128).
MAX_INDEX_BYTES = 100_000_000  # Largest index. One of 300,000 tensors takes about 40 MB.
MAX_CONFIG_BYTES = 10_000_000  # Largest config.json. Real ones have kilobytes.
MAX_CONFIG_VALUES = 500_000  # Most JSON values in a config.json. One with the names of 21,000 classes has 42,000.
MAX_PATTERN_CHARACTERS = 5_000  # Longest expression in an adapter_config.json. The longest known have about 1000.
MAX_REPEATS = 1000  # Largest number in braces of such an expression. Compiling larger ones can take gigabytes.
MAX_MATCHES = 2_000_000  # Most matches of expressions with modules for one adapter. 400 for 400 modules take 320,000.
MAX_ADAPTER_NAME = 500  # Longest name of a tensor in an adapter, in characters. The longest known have about 120.
MAX_DESCRIPTION_BYTES = 200_000_000  # Longest description of such a model: enough for a million tensors of 135 bytes.
MAX_REPORT_BYTES = 100_000_000  # Largest report. It names every tensor twice, as an index does.
MAX_SHOWN_REPORT_BYTES = 16_000_000  # Largest report of a stranger on the page. One of 100,000 tensors has about 15 MB.
# Most JSON values in such a report: 100,000 tensors in a thousand files. Short values still take much memory.
MAX_SHOWN_REPORT_VALUES = 216_000
MAX_SHOWN_DIGESTS_VALUES = 1_000_000  # Most JSON values in its digests: enough for 100,000 tensors.
MAX_METADATA_BYTES = 500_000  # Longest metadata of a model card. Evaluation results fill hundreds of kilobytes.
MAX_METADATA_VALUES = 100_000  # Most values in the metadata of a model card. More take long to parse.
MAX_METADATA_DEPTH = 20  # Deepest nesting in the metadata of a model card. Deeper metadata takes long to parse.
MAX_CARD_BYTES = 1_000_000  # Longest model card whose text goes into the card of the copy. Real ones have kilobytes.
MAX_SIDE_FILE_BYTES = 500_000_000  # Largest side file. Tokenizers have tens of MB; a larger file is weights or data.
MAX_SIDE_FILES_BYTES = 5_000_000_000  # Most bytes in all side files that the Hub does not copy. More is a data set.
MAX_FILES = 100_000  # Most files in a source. The Hub advises against larger repos.
# Longest name of a file (as a Linux path) or a tensor. Regular expressions search every name, and pages show it.
MAX_NAME_CHARACTERS = 4096
MAX_TENSORS = 1_000_000  # Most tensors in a checkpoint: three times those of the largest known, in half a gigabyte.
MAX_PAGE_TENSORS = 100_000  # Most tensors that a page shows in full: a second of one core, and 100 MB.
# Most bytes of weights that a page reads to know what a merge would do, for example if no Hub states the SHA-256 of
# the adapter's file. This takes seconds, so it is done for one visitor at a time.
MAX_PAGE_WEIGHT_BYTES = 600_000_000
MAX_PICKLE_BYTES = 32_000_000  # Largest pickle in a .bin file: enough for 160,000 tensors of 200 bytes.
MAX_PICKLE_STEPS = 1_500_000  # Most instructions of that pickle: 37 a tensor. As many hostile ones take 140 MB.
MAX_PICKLE_MARKS = 1000  # Deepest nesting in a pickle. Checkpoints are nested three or four deep.
MAX_DCP_BYTES = 64_000_000  # Largest `.metadata` of a distributed checkpoint: enough for 300,000 pieces of 200 bytes.
MAX_DCP_STEPS = 20_000_000  # Most pickle instructions of that file: 67 a piece. As many hostile ones take 2 GB.
# Most comparisons to find pieces of tensors that overlap; they take ten seconds at most. Cuts along two dimensions
# take three comparisons a piece, so this is enough for two million pieces.
MAX_BOX_LOOKS = 8_000_000
MAX_DIMENSIONS = 64  # Most dimensions of a tensor. numpy has the same limit.
MAX_DIRECTORY_BYTES = 16_000_000  # Largest directory of the archive that a .bin file is. A tensor takes about 80 bytes.
MAX_EXPANDED_BYTES = 1_000_000_000  # Bytes that tensors may add to a file by sharing theirs, such as masks.
# How often the bytes of a file may count in its tensors: in embeddings of encoder, decoder and both, and in a head.
MAX_NAMES_OF_A_TENSOR = 4

# --- Buffers ------------------------------------------------------------------------------------------

BATCH_BYTES = 2 << 20  # Bytes read, hashed and written at once. With more, Python's share of the work is small.
SPAN_BYTES = 64 << 20  # Bytes that one thread reads from a file in one stream to verify a checkpoint.
JOIN_GAP_BYTES = 64 << 10  # Largest gap between two ranges that are read as one. A request costs more than that.
COMPARED_BYTES = 24 << 20  # Most bytes of both sides that are read and not yet compared, beside one batch of each.
MAX_UPDATE_BYTES = 1 << 30  # Most memory for both matrices of a low-rank update, as float32. Usual ones take 67 MB.
MAX_EXPERT_BYTES = 4 << 20  # Most scales of one expert in MXFP4. Its numbers take 16 times that. gpt-oss has 518,400.
THREADS = 2  # Shards that are written, read early and verified side by side. The free Space has two cores.
DISK_FLOOR_BYTES = 64_000_000  # Bytes that stay free on the disk beside the result: side files, reports, the machine.
PROGRESS_SECONDS = 0.1  # Shortest time between two progress events: fast enough for the eye, slow enough for a log.
PROGRESS_FILES = 64  # Most files in one progress event. The others follow in the next.
MAX_SAMPLED_BYTES = 64_000_000  # Most bytes of a copy that are read to sample it. They take seconds on a slow line.
DEFAULT_MAX_SHARD_SIZE = "5GB"  # Default shard size. `huggingface_hub.save_torch_state_dict` has the same.

# --- Comparisons --------------------------------------------------------------------------------------

ROUNDS = 3  # Loads of each checkpoint in a comparison: enough for a median that one slow load does not move.
CURVE_MOMENTS = 160  # Most points of a memory curve: as many as a picture can show, and few enough for a report.
MEMORY_SHARE = 0.85  # Largest share of the free memory that a load may take. Beyond it, the kernel may kill.
ARCHITECTURE_SECONDS = 300  # Longest time to ask transformers about a model. The largest one takes much less.

# --- The Hub ------------------------------------------------------------------------------------------

XET_LEAST_BYTES = 128 << 10  # Shortest range that is read with hf-xet. Shorter ones are faster over plain HTTP.
HUB_BATCH_BYTES = 8 << 20  # Bytes of one request to a Hub: a few dozen requests a shard, and buffers that fit.
RANGES_AT_ONCE = 32  # Ranges of one batch, or headers, that are requested side by side. Only the round trips count.
FETCHES_AT_ONCE = 4  # Long reads from a Hub side by side. With two, a line of 50 MB/s is idle a tenth of the time.
ANSWER_TIMEOUT_SECONDS = 100  # Longest wait for any other answer. The Hub itself gives up on a commit after 60 seconds.
LONGEST_WAIT_SECONDS = 301  # Longest wait that a server may ask for: the Hub counts requests in windows of 300 s.
MAX_TOKEN_BYTES = 10_000  # Largest file of a saved login. A token of an application has a thousand characters or two.
MAX_STORED_TOKENS_BYTES = 1_000_000  # Largest file with all saved logins and the tokens that renew them.
MAX_ANSWER_BYTES = 64_000_000  # Longest answer of a Hub to one question, with all pages. 100,000 files take 40 MB.
MAX_ANSWER_VALUES = 3_000_000  # Most JSON values in such an answer. 100,000 files take 1,500,000.
MAX_PAGES = 2000  # Most pages of a list. 100,000 files are 100 pages.
LEAST_BYTES = 64_000  # Fewest bytes of a file in `LEAST_SECONDS`: 35 kB/s for 32 reads side by side.

# --- Many machines --------------------------------------------------------------------------------------

TOLD_SECONDS = 1.0  # Time between two progress messages of a worker. A thousand workers then send a thousand a second.
GRANT_MARGIN_SECONDS = 30.0  # Time before its end at which hf-xet 1.8 asks for another grant, which needs a login.
LEASE_SECONDS = 60.0  # Silence of a job after which another machine may take over its shared folder.

# --- Many visitors on one machine -----------------------------------------------------------------------

EVENT_BYTES = 64_000_000  # Longest event of a job. A plan of 100,000 tensors prints about 20 MB.
EVENTS_BYTES = 4 * EVENT_BYTES  # Most bytes in all events of a job: a plan, a report, days of progress once a second.
STDERR_BYTES = 8 << 10  # Bytes that are kept of what a broken job printed: enough to see why it broke.
MAX_ACTIVE_JOBS = 100  # Most jobs that are queued or running. Each keeps its plan in memory.
VIEW_SECONDS = 0.2  # Shortest time between two views of a job, because nobody reads faster.
CACHED_SECONDS = 10 * 60  # Time after which the headers of a checkpoint are read again.
CACHED_TENSORS = 100_000  # Most tensors in the memory of the page. They take about 100 MB.
CACHED_ANSWERS = 256  # Most answers of transformers that are kept, refusals included. Asking again takes seconds.
QUESTION_SECONDS = 30.0  # Longest time of a question of a page to transformers. A sound model takes 5 to 10 s.
MAX_BODY_BYTES = 1_000_000  # Largest body of a request to the page. Its own requests have a few kilobytes at most.
MAX_TOOL_BYTES = 16_000  # Largest body of a call of a tool (MCP). A call has a few kilobytes at most.
MAX_TOOL_CALLS = 16  # Most calls of tools at once. Gradio 6.31 keeps one of the page's forty threads waiting for each.
MAX_WATCHERS = 8  # Most windows in which one person may watch jobs. Each takes one of `MAX_CALLS` while the job runs.
MAX_QUERY_BYTES = 8000  # Longest query of an address of the page. A link holds a few names and choices.
MAX_PATH_CHARACTERS = 500  # Longest path of an address of the page.
MAX_LINK_CHARACTERS = 2000  # Longest name of a repo, or link to it. Names have up to 96, branches a few hundred.
MAX_CALLS = 300  # Most calls of all visitors that the page works on at once. Watching a job is such a call.
MAX_CALLS_WAITING = 200  # Most calls that wait for the page. It asks further visitors to come back later.
MAX_SESSIONS_KEPT = 500  # Most sessions whose answers the page keeps until somebody fetches them.
MAX_OVERVIEW_BYTES = 4_000_000  # Longest answer of that process: counts, files, a picture of at most 800 rectangles.
