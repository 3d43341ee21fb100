// Load a model with llama.cpp, from the first of its files, and print the logits of the last of a few tokens.
#include <cstdio>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

int main(int count, char ** words) {
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
    }, nullptr);
    ggml_backend_load_all_from_path(words[2]);
    llama_model * model = llama_model_load_from_file(words[1], llama_model_default_params());
    if (!model) return 1;
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 64;
    params.n_threads = params.n_threads_batch = 1;
    llama_context * context = llama_init_from_model(model, params);
    std::vector<llama_token> tokens = {3, 1, 4, 1, 5};
    if (!context || llama_decode(context, llama_batch_get_one(tokens.data(), tokens.size()))) return 1;
    const float * logits = llama_get_logits_ith(context, -1);
    const int size = llama_vocab_n_tokens(llama_model_get_vocab(model));
    for (int i = 0; i < size; i++) printf("%a\n", logits[i]);
}
