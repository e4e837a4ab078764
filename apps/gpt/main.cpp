// main.cpp - tarn-gpt: trains GPT-2 models on text, and writes text with them.
//
// Read on: settings (the flags), corpus (text to tokens), setup (model, optimizer, schedule),
// weights (published ones), trainer (the loop), write_text, report (curves), checkpoint, export.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include <unistd.h>

#include "tarn/apps/common/device_choice.h"
#include "tarn/apps/common/main_guard.h"
#include "tarn/apps/common/terminal.h"
#include "tarn/apps/common/text.h"
#include "tarn/apps/gpt/export.h"
#include "tarn/apps/gpt/setup.h"
#include "tarn/apps/gpt/trainer.h"
#include "tarn/apps/gpt/write_text.h"
#include "tarn/core/file.h"
#include "tarn/core/math_mode.h"
#include "tarn/core/parallel.h"
#include "tarn/core/random.h"
#include "tarn/data/bpe.h"

namespace {

using namespace tarn;
using namespace tarn::apps;
using nn::models::Gpt;
namespace fs = std::filesystem;

std::shared_ptr<data::Tokenizer> tokenizer_of_run(const fs::path& run) {
  return tokenizer_in(run / "tokenizer.json");
}

// What reads and writes a model's text: what is kept with it, else what --tokenizer names. A run
// keeps its own; for weights --tokenizer comes first. Folders of Hugging Face's may have a
// tokenizer.json of another form beside the two files.
std::shared_ptr<data::Tokenizer> tokenizer_of(const GptSettings& s) {
  // Else a message would ask for a tokenizer where the name of the weights is misspelt.
  TARN_CHECK_AS(FileError, s.resume || is_there(s.init_from), "weights: cannot open ", s.init_from,
                ": there is no such file or folder");
  if (!s.resume && s.tokenizer != "auto") return named_tokenizer(s.tokenizer);
  const std::string from = s.resume ? *s.resume : s.init_from;
  const fs::path folder = is_folder(from) ? from : folder_of(from);
  const auto has = [&](const char* name) { return is_there((folder / name).string()); };
  if (!s.resume && has("vocab.json") && has("merges.txt")) return data::Bpe::load(folder.string());
  auto own = tokenizer_of_run(folder);
  if (!own && has("manifest.json")) own = tokenizer_of_run(folder / "../..");  // of a checkpoint
  return own ? own : named_tokenizer(s.tokenizer);
}

// The text as tokens; for a model that is there already, as those that it knows.
Corpus corpus_of(const GptSettings& s) {
  return open_corpus(s, s.resume || s.from_file() ? tokenizer_of(s) : nullptr);
}

// --init-from FILE: the model in the file. A vocabulary that is larger than the tokenizer's is
// common (padded); a smaller one cannot read its tokens.
std::unique_ptr<Gpt> gpt_from_file(const GptSettings& s, const Options& options,
                                   const data::Tokenizer* tokenizer) {
  const int64_t heads = options.given("--n-head") ? s.n_head : 0;
  GptWeights weights = load_gpt_weights(s.init_from, heads);
  if (weights.guessed_heads) {
    std::fprintf(stderr,
                 "note: nothing says how many attention heads the model in %s has; taking %lld, of "
                 "64 values each as in GPT-2 (--n-head N says otherwise)\n",
                 s.init_from.c_str(), static_cast<long long>(weights.options.heads));
  }
  TARN_CHECK_AS(ValueError, !tokenizer || tokenizer->vocab_size() <= weights.options.vocab,
                "the model in ", s.init_from, " knows ", weights.options.vocab,
                " tokens, the tokenizer has ", tokenizer ? tokenizer->vocab_size() : 0);
  const auto check_given = [&](const char* flag, int64_t wanted, int64_t there) {
    if (!options.given(flag) || wanted == there) return;
    throw UsageError(format("%s %lld: the model in %s has %lld; leave the flag out", flag,
                            static_cast<long long>(wanted), s.init_from.c_str(),
                            static_cast<long long>(there)));
  };
  check_given("--n-layer", s.n_layer, weights.options.layers);
  check_given("--n-embd", s.n_embd, weights.options.size);
  check_given("--bias", s.bias, weights.options.bias);
  if (options.given("--gelu")) weights.options.tanh_gelu = s.tanh_gelu();
  GptSettings sized = s;
  if (!options.given("--block-size")) sized.block_size = weights.options.block;
  return make_gpt(sized, std::move(weights), s.init_from);
}

// The model of a checkpoint alone, for text and estimates.
std::unique_ptr<Gpt> gpt_from_run(const GptSettings& s, const Ranks& ranks) {
  Checkpoint c = load_newest_checkpoint(*s.resume, ranks, {"model"});
  const nn::models::GptOptions options = restore_sizes(c);
  GptSettings sized = s;
  sized.block_size = options.block;
  return make_gpt(sized, GptWeights{std::move(c.tensors.at("model")), options}, *s.resume);
}

int export_weights(const GptSettings& s, const Options& options) {
  const auto tokenizer = tokenizer_of(s);
  const auto gpt = s.resume ? gpt_from_run(s, Ranks()) : gpt_from_file(s, options, tokenizer.get());
  export_gpt(*s.export_to, *gpt, tokenizer.get(), parse_dtype(s.dtype));
  std::printf("wrote %s (%lld parameters, %s%s)\n", s.export_to->c_str(),
              static_cast<long long>(gpt->num_parameters()), s.dtype.c_str(),
              gpt->options().tanh_gelu ? "" : ", exact GELU");
  return 0;
}

int write_samples(const GptSettings& s, const Options& options) {
  const auto tokenizer = tokenizer_of(s);
  TARN_CHECK(tokenizer,
             "--sample: no tokenizer for this model; pass --tokenizer with the folder of ",
             "GPT-2's vocab.json and merges.txt, byte, or a tokenizer.json");
  const auto gpt = s.resume ? gpt_from_run(s, {}) : gpt_from_file(s, options, tokenizer.get());
  const std::vector<int32_t> prompt = prompt_ids(s.start, *tokenizer);
  const int32_t largest = *std::max_element(prompt.begin(), prompt.end());
  TARN_CHECK_AS(ValueError, largest < gpt->options().vocab, "--start: it has a token ", largest,
                ", and the model knows ", gpt->options().vocab,
                "; is --tokenizer that of its tokens?");
  Generator generator(static_cast<uint64_t>(s.seed));
  const auto start = std::chrono::steady_clock::now();
  int64_t tokens = 0;
  const bool terminal = isatty(STDOUT_FILENO) == 1;  // a file gets the bytes as they are
  ShownText shown;
  const auto print = [&](const std::string& piece) {
    std::cout << (terminal ? shown.next(piece) : piece) << std::flush;
  };
  for (int64_t i = 0; i < s.num_samples; ++i) {
    if (!s.start.empty()) print(tokenizer->decode(prompt));
    write_tokens(*gpt, prompt, text_options(s, s.max_new_tokens, generator), [&](int32_t id) {
      ++tokens;
      if (id >= tokenizer->vocab_size() || id == tokenizer->end_of_text()) return false;
      print(tokenizer->piece(id));
      return true;
    });
    std::cout << shown.rest() << "\n---------------\n";
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::cerr << format("%lld tokens in %.1f s, %.0f tokens/s\n", static_cast<long long>(tokens),
                      took.count(), static_cast<double>(tokens) / took.count());
  return 0;
}

void print_start(const GptSettings& s, const Corpus& corpus, const Gpt& gpt, const Ranks& ranks) {
  if (!ranks.main()) return;
  const nn::models::GptOptions& o = gpt.options();
  std::printf(
      "%lld layers, %lld heads, width %lld, block %lld (%lld parameters), %d thread%s, %s\n",
      static_cast<long long>(o.layers), static_cast<long long>(o.heads),
      static_cast<long long>(o.size), static_cast<long long>(o.block),
      static_cast<long long>(gpt.num_parameters()), num_threads(), num_threads() == 1 ? "" : "s",
      Device(s.device).is_cuda() ? device_title(Device(s.device)).c_str() : "cpu");
  std::printf("%s: %lld training and %lld test tokens, %lld different (%s); %lld tokens a step\n",
              corpus.name.c_str(), static_cast<long long>(corpus.train.size()),
              static_cast<long long>(corpus.val.size()), static_cast<long long>(corpus.vocab),
              corpus.tokenizer ? corpus.tokenizer->kind().c_str() : "ids",
              static_cast<long long>(s.gradient_accumulation_steps * s.batch_size * o.block));
  const std::vector<Device> devices = replica_devices(s.ranks, Device(s.device));
  if (!devices.empty()) std::printf("%s\n", replicas_title(devices).c_str());
  if (ranks.size() > 1 && s.ranks.zero_stage > 0) {
    std::printf("%d ranks, each with its part of the training state (ZeRO stage %lld)\n",
                ranks.size(), static_cast<long long>(s.ranks.zero_stage));
  }
  if (s.lr_base_size > 0) {
    std::printf("learning rate %s\n", number_text(s.rate(s.learning_rate)).c_str());
  }
}

// Rank 0 writes; the others read what a run that goes on has saved.
RunDir open_run(const GptSettings& s, const std::string& data, const Ranks& ranks) {
  if (!ranks.main()) return RunDir::nowhere();
  if (s.resume) return RunDir::open(*s.resume);
  if (s.out_dir.empty()) return RunDir::create("runs", default_run_name("gpt-" + s.model, data));
  const fs::path path = fs::path(s.out_dir).lexically_normal();
  const fs::path named = path.has_filename() ? path : path.parent_path();
  const fs::path base = named.has_parent_path() ? named.parent_path() : fs::path(".");
  return RunDir::create(base, named.filename().string());
}

// A few words that the text begins with: a --start whose characters the model knows.
std::string start_of_text(const Corpus& corpus) {
  if (!corpus.tokenizer) return "";
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < std::min<int64_t>(corpus.train.size(), 24); ++i) {
    ids.push_back(static_cast<int32_t>(corpus.train[i]));
  }
  std::string text = corpus.tokenizer->decode(ids);
  text = text.substr(0, text.find_first_of("\r\n"));
  const size_t space = text.rfind(' ');  // the last word may be cut
  if (space != std::string::npos && space > 0) text.resize(space);
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) { return c >= ' '; });
  return plain ? text : "";  // the last character may be cut as well
}

void print_summary(const GptSettings& s, const Corpus& corpus, const GptTrainer& trainer,
                   const RunDir& run, double seconds, bool complete) {
  const GptHistory& history = trainer.history();
  if (history.evals.size() > 1) {
    std::cout << "\n"
              << terminal_chart(history, wants_color(STDOUT_FILENO), terminal_width(STDOUT_FILENO));
  }
  const std::string quoted = shell_quote(run.path().string());
  const char* path = quoted.c_str();
  const std::string rate = trainer.rate_text();
  std::printf("\n%s after %s, %.0f tokens/s%s%s\n", complete ? "Done" : "Stopped and saved",
              clock_text(seconds).c_str(), trainer.tokens_per_second(), rate.empty() ? "" : ", ",
              rate.c_str());
  std::printf("  run folder  %s (plots/, samples/, metrics.jsonl, train.log, checkpoints/)\n",
              path);
  if (!complete) {
    std::printf("  go on       tarn-gpt --resume %s\n", path);
  } else {
    const std::string start = start_of_text(corpus);
    std::printf(
        "  try next    tarn-gpt --sample --resume %s%s\n"
        "              tarn-gpt --resume %s --max-iters %lld\n"
        "              tarn-gpt --help\n",
        path, start.empty() ? "" : (" --start " + shell_quote(start)).c_str(), path,
        static_cast<long long>(2 * s.max_iters));
  }
  if (history.evals.empty()) return;
  const GptEvalFigures& last = history.evals.back();
  // The line other programs read: keep its form, and keep it last.
  std::printf("Final: train loss %.4f, val loss %.4f, best val loss %.4f\n", last.train_loss,
              last.val_loss, trainer.state().best_val_loss);
}

int evaluate_only(const GptSettings& s, const Options& options, const Ranks& ranks) {
  const Corpus corpus = corpus_of(s);
  const auto gpt =
      s.resume ? gpt_from_run(s, ranks) : gpt_from_file(s, options, corpus.tokenizer.get());
  check_guess(corpus, gpt->options().vocab);
  print_start(s, corpus, *gpt, ranks);
  std::fflush(stdout);
  const GptLosses losses = *GptTrainer(s, corpus, *gpt, nullptr, ranks).estimate();
  if (ranks.main()) std::printf("train loss %.4f, val loss %.4f\n", losses.train, losses.val);
  return 0;
}

// What the run folder should say of the model, wherever it came from.
void note_sizes(GptSettings& s, const nn::models::GptOptions& o) {
  s.n_layer = o.layers;
  s.n_head = o.heads;
  s.n_embd = o.size;
  s.block_size = o.block;
  s.bias = o.bias;
  s.gelu = o.tanh_gelu ? "tanh" : "exact";
}

// The model that training starts from.
std::unique_ptr<Gpt> new_gpt(const GptSettings& s, const Options& options, const Corpus& corpus,
                             int64_t vocab) {
  auto gpt = s.from_file() && !s.resume ? gpt_from_file(s, options, corpus.tokenizer.get())
                                        : make_gpt(s, vocab);
  check_guess(corpus, gpt->options().vocab);
  return gpt;
}

// Tries batches of up to `most` windows on a model that is thrown away.
int64_t search_batch(GptSettings s, const Options& options, int64_t most, bool quiet) {
  const KeepRandom keep;
  const Corpus corpus = corpus_of(s);
  s.learning_rate = s.min_lr = 1e-12;  // a trial must not diverge
  s.measure = {};
  s.gradient_accumulation_steps = std::min<int64_t>(s.gradient_accumulation_steps, 2);
  const auto gpt = new_gpt(s, options, corpus, corpus.vocab);
  check_length(corpus, gpt->options().block);
  GptTrainer trainer(s, corpus, *gpt, nullptr);
  const int64_t windows = static_cast<int64_t>(corpus.train.size()) / gpt->options().block;
  most = std::clamp<int64_t>(windows, 1, most);
  return find_batch(s.memory, Device(s.device), most, quiet, [&](int64_t n) {
    s.batch_size = n;
    trainer.try_steps();
  });
}

// With more steps the cosine is spread anew over all, unless --lr-decay-iters says where it ends.
void note_longer_decay(const GptSettings& s, const GptTrainer& trainer) {
  const int64_t was = std::atoll(flag_of_run(*s.resume, "max-iters").c_str());
  if (!s.decay_lr || s.lr_decay_iters > 0 || was <= 0 || s.max_iters <= was) return;
  if (trainer.state().step <= s.warmup_iters) return;
  std::printf(
      "note: the cosine of %lld steps is spread over %lld now, and the learning rate rises again\n"
      "      (--no-decay-lr --lr X goes on evenly)\n",
      static_cast<long long>(was), static_cast<long long>(s.max_iters));
}

int train_once(GptSettings& s, const Options& options, const Ranks& ranks) {
  const auto start = std::chrono::steady_clock::now();
  std::optional<RunDir> opened;
  std::optional<Checkpoint> checkpoint;
  if (s.resume) {
    opened.emplace(open_run(s, "", ranks));  // first: a process that ends there may still save
    checkpoint = load_newest_checkpoint(*s.resume, ranks);
  }
  const Corpus corpus = corpus_of(s);
  const int64_t vocab = checkpoint ? restore_sizes(*checkpoint).vocab : corpus.vocab;
  const auto gpt = new_gpt(s, options, corpus, vocab);
  note_sizes(s, gpt->options());
  check_length(corpus, s.block_size);
  if (!opened) opened.emplace(open_run(s, corpus.name, ranks));
  RunDir& run = *opened;
  if (ranks.main()) Ranks::remember_run(run.path());
  print_start(s, corpus, *gpt, ranks);
  if (ranks.main()) std::printf("run folder %s\n", run.path().c_str());
  std::fflush(stdout);
  GptTrainer trainer(s, corpus, *gpt, &run, ranks);
  if (checkpoint) {
    GptState at;
    restore_values(*checkpoint, at);
    const fs::path metrics = run.path() / "metrics.jsonl";
    trainer.resume(*checkpoint, ranks.main() ? load_gpt_history(metrics, at.step, at.evaluated_step)
                                             : GptHistory());
    checkpoint.reset();
    if (trainer.state().step >= s.max_iters) {
      if (ranks.main()) {
        std::printf("All %lld steps are done; a larger --max-iters goes on.\n",
                    static_cast<long long>(s.max_iters));
      }
      return 0;
    }
    if (ranks.main()) {
      std::printf("resumed after step %lld\n", static_cast<long long>(trainer.state().step));
      note_longer_decay(s, trainer);
    }
  } else if (corpus.tokenizer && ranks.main()) {
    write_file(run.path() / "tokenizer.json", corpus.tokenizer->json());
  }
  if (ranks.main()) run.write_config(options, num_threads());
  const bool complete = trainer.fit();
  if (!ranks.main()) return 0;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  print_summary(s, corpus, trainer, run, took.count(), complete);
  return 0;
}

int train(GptSettings& s, const Options& options, const Ranks& ranks) {
  const Device device(s.device);
  constexpr int64_t kMost = int64_t{1} << 20;
  if (s.memory.find_batch) s.batch_size = search_batch(s, options, kMost, false);
  if (ranks.size() > 1) return train_once(s, options, ranks);  // all would have to search together
  const GptSettings asked = s;
  return run_or_advise(
      s.memory, device, s.batch_size, [&] { return train_once(s, options, ranks); },
      [&](int64_t most) { return search_batch(asked, options, most, true); });
}

// What a run that goes on does as before.
void inherit(Options& options, const std::string& run) {
  inherit_flags(options, run,
                {"--resume", "--init-from", "--out-dir", "--sample", "--eval-only", "--export",
                 "--progress", "--start", "--num-samples", "--max-new-tokens", "--find-batch",
                 "--profile", "--memory-report"});
}

// Whole paths in the run's config.json: it may go on from elsewhere.
void make_paths_whole(GptSettings& s) {
  if (s.data != "king-james") s.data = whole_path(s.data);
  s.val_data = whole_path(s.val_data);
  const bool word = s.tokenizer == "auto" || s.tokenizer == "char" || s.tokenizer == "byte";
  if (!word) s.tokenizer = whole_path(s.tokenizer);
}

int run(int argc, char** argv) {
  GptSettings s;
  Options options("tarn-gpt", "Trains GPT-2 models on text, and writes text with them.");
  declare_flags(options, s);
  if (!options.parse(argc, argv)) return 0;
  if (s.init_from == "resume" && !s.resume && options.given("--out-dir")) s.resume = s.out_dir;
  if (s.resume) {
    inherit(options, *s.resume);
  } else {
    apply_preset(options, s);
  }
  // What a run computes in says nothing of what its weights are: they are float32.
  if (s.export_to && !options.given("--dtype")) s.dtype = "float32";
  check_settings(s, &options);
  if (s.export_to) {
    s.device = "cpu";
    return export_weights(s, options);
  }
  forget_launch(s.ranks, options);
  const Ranks ranks = s.sample ? Ranks() : Ranks::join(s.ranks, s.device);
  check_find_batch(s.memory, ranks);
  ranks.share(s.batch_size, "--batch-size");
  if (!s.sample) check_rank_flags(s.ranks, ranks, options);
  const std::string before = s.eval_only ? "" : ranks.restarted_run();
  if (!before.empty()) {
    s.resume = before;
    const std::string device = s.device;  // the run's is rank 0's, and each rank has its own
    inherit(options, before);
    s.device = device;
  }
  s.device = choose_device(s.device, std::cout).str();
  if (!s.sample) replica_devices(s.ranks, Device(s.device));  // throws where they are not there
  apply_memory_limit(s.memory, Device(s.device));
  set_allow_tf32(s.allow_tf32);
  if (s.threads > 0) set_num_threads(static_cast<int>(s.threads));
  manual_seed(static_cast<uint64_t>(s.seed));
  if (s.sample) return write_samples(s, options);
  if (s.eval_only) return evaluate_only(s, options, ranks);
  make_paths_whole(s);
  return train(s, options, ranks);
}

}  // namespace

int main(int argc, char** argv) {
  return main_guard("tarn-gpt", [&] { return run(argc, argv); });
}
