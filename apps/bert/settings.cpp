// settings.cpp - the flags of tarn-bert.
#include "tarn/apps/bert/settings.h"

namespace tarn::apps {
namespace {

void declare_model(Options& options, BertSettings& s) {
  options
      .positional("weights", &s.weights,
                  "safetensors of Hugging Face's BertModel, or a folder with model.safetensors")
      .required()
      .not_empty();
  options.positional("text", &s.texts, "a sentence, in quotes; none: see --input");
  options.group("Model");
  options.add("--vocab", &s.vocab, "vocab.txt, or a tokenizer.json of the WordPiece kind")
      .value_name("FILE")
      .default_text("the one beside the weights")
      .not_empty();
  options.add("--config", &s.config, "config.json: heads, eps, layers")
      .value_name("FILE")
      .default_text("the one beside the weights, if any")
      .not_empty();
  options.add("--heads", &s.heads, "attention heads, which weights do not tell")
      .at_least(1)
      .default_text("by config.json");
  options
      .add("--max-length", &s.max_length,
           "tokens of a text that are read, [CLS] and [SEP] among them; what is longer is cut, and "
           "a note says so")
      .at_least(2)
      .default_text("by sentence_bert_config.json, else what the model can read");
  options
      .add("--pooling", &s.pooling,
           "mean of the real tokens' states, or the state of [CLS]; auto: by 1_Pooling/config.json "
           "beside the weights, else mean")
      .choices({"auto", "mean", "cls"});
  options.add("--normalize", &s.normalize, "vectors of length 1");
}

void declare_output(Options& options, BertSettings& s) {
  options.group("Texts");
  options.add("--input", &s.input, "a file with a text a line; - for standard input")
      .value_name("FILE")
      .not_empty();
  options.add("-b, --batch-size", &s.batch_size, "texts that go through the model together")
      .range(1, 1 << 16);
  options.group("Output");
  options
      .add("--output", &s.output,
           "a file instead of standard output: NAME.npy for an array [texts, size], any other name "
           "for JSON lines")
      .value_name("FILE")
      .not_empty();
  options.add("--similarity", &s.similarity, "print how alike the texts are: a table of cosines");
  options.add("--tokens", &s.tokens, "print the tokens of the texts instead of vectors");
  options.group("Run");
  options
      .add("--device", &s.device,
           "cpu, cuda, cuda:<i>, or auto: the first GPU if there is one, else the cpu")
      .value_name("DEVICE");
  options.add("--threads", &s.threads, "threads of the kernels; 0: all cores").range(0, 1024);
}

}  // namespace

void declare_flags(Options& options, BertSettings& s) {
  declare_model(options, s);
  declare_output(options, s);
  options.epilog(
      "Examples:\n"
      "  tarn-bert MODELFOLDER 'A cat sits outside' 'The weather is lovely' --similarity\n"
      "  tarn-bert model.safetensors --vocab vocab.txt --heads 12 --input sentences.txt\n"
      "  tarn-bert MODELFOLDER --input sentences.txt --output vectors.npy\n"
      "\n"
      "Prints a JSON object a text: {\"text\": ..., \"tokens\": how many, \"vector\": [...]}; the\n"
      "vectors are those of sentence-transformers. Exit codes: 1 for an error, 2 for a\n"
      "command line that cannot be run.");
}

void check_settings(const BertSettings& s) {
  if (!s.texts.empty() && !s.input.empty()) {
    throw UsageError("texts come from the command line or from --input; pass one of them");
  }
  if (s.tokens && (s.similarity || s.writes_npy())) {
    throw UsageError(std::string("--tokens prints no vectors, which ") +
                     (s.similarity ? "--similarity" : "--output " + s.output) + " needs");
  }
}

}  // namespace tarn::apps
