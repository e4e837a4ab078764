// main.cpp - tarn-bert: vectors of sentences, from an encoder of BERT's shape.
//
// Read on: settings (the flags), sentence_model (the files of a model), sentences (texts to
// vectors), print.
#include <iostream>

#include "tarn/apps/bert/print.h"
#include "tarn/apps/common/device_choice.h"
#include "tarn/apps/common/file.h"
#include "tarn/apps/common/main_guard.h"
#include "tarn/core/npz.h"
#include "tarn/core/parallel.h"

namespace {

using namespace tarn;
using namespace tarn::apps;

void deliver(const BertSettings& s, const std::string& lines) {
  if (s.output.empty()) {
    std::cout << lines;
  } else {
    write_file(s.output, lines);
  }
}

int run(int argc, char** argv) {
  BertSettings s;
  Options options("tarn-bert", "Prints vectors of sentences, which are near where meanings are.");
  declare_flags(options, s);
  if (!options.parse(argc, argv)) return 0;
  s.normalize_given = options.given("--normalize");
  check_settings(s);
  s.device = choose_device(s.device, std::cerr).str();
  if (s.threads > 0) set_num_threads(static_cast<int>(s.threads));

  SentenceModel model = load_sentence_model(s);
  const std::vector<Sentence> sentences = tokenize(model, read_texts(s));
  const std::string note = cut_note(sentences, model.max_length);
  if (!note.empty()) std::cerr << "tarn-bert: note: " << note << "\n";
  if (s.tokens) {
    deliver(s, token_lines(sentences, *model.words));
    return 0;
  }
  const Tensor vectors = sentence_vectors(model, sentences, s.batch_size);
  if (s.similarity) std::cout << similarity_table(sentences, vectors);
  if (s.writes_npy()) {
    save_npy(s.output, vectors);
  } else if (!s.similarity || !s.output.empty()) {
    deliver(s, vector_lines(sentences, vectors));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return main_guard("tarn-bert", [&] { return run(argc, argv); });
}
