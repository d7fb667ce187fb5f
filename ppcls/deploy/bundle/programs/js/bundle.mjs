// A bundle in JavaScript. Node.js and the web page provide the functions that read, decode and run.

const STAGES = ["decoding", "resizing", "network", "post-processing"];
const NAME = /^\w[\w.-]*(\/\w[\w.-]*)*$/;

export class Bundle {
  // read: async (name) => Uint8Array, the content of a file of the bundle.
  // decode: async (Uint8Array) => {height, width, values: Uint8Array}, upright RGB pixels [height, width, 3].
  // createSession: async (Uint8Array) => session of ONNX Runtime.
  // Tensor: class of ONNX Runtime.
  static async open({ read, decode, createSession, Tensor }) {
    const bundle = new Bundle();
    bundle.read = async (name) => {
      if (!NAME.test(name)) throw new Error(`bundle.json: expected a path in the bundle, got ${name}`);
      return read(name);
    };
    bundle.decode = decode;
    bundle.Tensor = Tensor;
    bundle.json = JSON.parse(new TextDecoder().decode(await read("bundle.json")));
    bundle.session = await createSession(await bundle.read(bundle.json.model.file));
    return bundle;
  }

  // Returns the outputs for one image: prepared, logits, probabilities and known_score.
  async run(image) {
    const { model } = this.json;
    const shape = [1, image.height, image.width, 3];
    const results = await this.session.run({ [model.input]: new this.Tensor("uint8", image.values, shape) });
    const outputs = {};
    for (const stage of ["prepared", "logits", "probabilities", "known_score"]) {
      if (model[stage]) outputs[stage] = results[model[stage]].data;
    }
    return outputs;
  }

  // Returns the numbers of the selected classes, in descending order of their scores.
  select(scores) {
    const { method, topk } = this.json.decision;
    const order = Array.from(scores.keys()).sort((a, b) => scores[b] - scores[a] || a - b);
    if (method === "topk") return order.slice(0, topk);
    if (method === "binary") return [scores[1] >= this.thresholdOf(1) ? 1 : 0];
    return order.filter((k) => scores[k] >= this.thresholdOf(k));
  }

  thresholdOf(k) {
    const { threshold } = this.json.decision;
    return Array.isArray(threshold) ? threshold[k] : threshold;
  }

  // Returns whether two selections are equal, or differ only by expected scores that are nearly tied.
  isSameSelection(selected, expected, scores, allowed) {
    const { method } = this.json.decision;
    const near = (a, b) => Math.abs(a - b) <= 2 * allowed;
    if (method === "topk") {
      return selected.length === expected.length && selected.every((k, i) => near(scores[k], scores[expected[i]]));
    }
    const changed = [...selected.filter((k) => !expected.includes(k)), ...expected.filter((k) => !selected.includes(k))];
    const decisive = changed.length && method === "binary" ? [1] : changed;
    return decisive.every((k) => near(scores[k], this.thresholdOf(k)));
  }

  // Returns a score and its threshold. The image belongs to no class if the score is below it.
  judge({ probabilities, known_score: known }) {
    const best = probabilities.reduce((first, value, k) => (value > probabilities[first] ? k : first), 0);
    const score = known ? known[0] : probabilities[best];
    const { threshold } = this.json.rejection ?? { threshold: 0 };
    return { score, limit: Array.isArray(threshold) ? threshold[best] : threshold, best };
  }

  // Returns the names and scores of the selected classes of an encoded image, or "unknown" with its score.
  async predict(data) {
    const outputs = await this.run(await this.decode(data));
    const { score, limit } = this.judge(outputs);
    if (this.json.rejection && score < limit) return [{ name: "unknown", score }];
    const { probabilities } = outputs;
    return this.select(probabilities).map((k) => ({ name: this.json.classes[k], score: probabilities[k] }));
  }

  // Runs the golden samples; returns whether all outputs are as expected, and lines of text.
  async verify() {
    const failures = [];
    let largest = 0;
    for (const sample of this.json.golden) {
      const { failure, apart } = await this.verifySample(sample);
      largest = Math.max(largest, apart);
      if (failure) failures.push({ image: sample.image, ...failure });
    }
    const total = this.json.golden.length;
    if (!failures.length) {
      return { passed: true, text: `PASS: ${total} of ${total}, largest difference ${largest.toExponential(1)}` };
    }
    const first = STAGES.find((stage) => failures.some((failure) => failure.stage === stage));
    const { image, text } = failures.find((failure) => failure.stage === first);
    const counts = `FAIL: ${total - failures.length} of ${total}; first stage that differs: ${first}`;
    return { passed: false, text: `${counts}\n${image}: ${first}: ${text}` };
  }

  // Each stage receives the expected output of the one before.
  async verifySample(sample) {
    const limits = this.json.tolerances;
    const decoded = await this.decode(await this.read(sample.image));
    const expected = { height: sample.height, width: sample.width, values: await this.read(sample.decoded) };
    const probabilities = await this.readFloats(sample.probabilities);
    const outputs = await this.run(expected);
    const equal =
      decoded.height === expected.height && decoded.values.every((value, i) => value === expected.values[i]);
    const whole = (equal ? outputs : await this.run(decoded)).probabilities;
    const apart = probabilities.reduce((most, value, k) => Math.max(most, Math.abs(value - whole[k])), 0);
    const lossless = !sample.image.endsWith(".jpg");
    let failure = null;
    const check = (stage, actual, values, allowed) => {
      const text = failure ? "" : compare(actual, values, allowed);
      if (text) failure = { stage, text };
    };
    if (decoded.height !== sample.height || decoded.width !== sample.width) {
      failure = { stage: "decoding", text: "another size: check the EXIF orientation" };
    }
    check("decoding", decoded.values, expected.values, lossless ? [0, 0] : limits.decoding);
    if (sample.prepared) {
      check("resizing", outputs.prepared, await this.readFloats(sample.prepared), limits.resizing);
    }
    if (sample.logits) {
      check("network", outputs.logits, await this.readFloats(sample.logits), [limits.logits, limits.logits]);
    }
    const most = limits.probabilities;
    check("post-processing", outputs.probabilities, probabilities, [most, most]);
    const selected = this.select(outputs.probabilities);
    if (!failure && !this.isSameSelection(selected, sample.classes, probabilities, most)) {
      failure = { stage: "post-processing", text: `expected the classes ${sample.classes}, got ${selected}` };
    }
    if (!failure && this.json.rejection) {
      const { score, limit } = this.judge(outputs);
      const allowed = outputs.known_score ? limits.known_score : most;
      if (!(Math.abs(score - sample.known_score) <= allowed)) {
        const text = `expected the score ${sample.known_score} for unknown, got ${score}`;
        failure = { stage: "post-processing", text };
      } else if (score < limit !== sample.unknown && Math.abs(sample.known_score - limit) > 2 * allowed) {
        failure = { stage: "post-processing", text: `expected unknown ${sample.unknown}` };
      }
    }
    return { failure, apart };
  }

  async readFloats(name) {
    const bytes = await this.read(name);
    return new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
  }
}

// Returns an answer of Bundle.predict as text.
export function describe(classes) {
  if (classes[0]?.name === "unknown") return `unknown, score ${classes[0].score.toFixed(4)}`;
  return classes.map(({ name, score }) => `${name} ${(100 * score).toFixed(2)}%`).join(", ");
}

// Returns the difference of two arrays as text if it is not allowed, else "".
function compare(actual, expected, [most, meanAllowed]) {
  if (actual.length !== expected.length) return `expected ${expected.length} values, got ${actual.length}`;
  let largest = 0;
  let sum = 0;
  for (let i = 0; i < actual.length; i += 1) {
    const apart = Math.abs(actual[i] - expected[i]);
    if (!(apart <= largest)) largest = apart; // also NaN
    sum += apart;
  }
  const mean = sum / Math.max(1, actual.length);
  if (largest <= most && mean <= meanAllowed) return "";
  const [a, b] = [largest, mean].map((value) => value.toPrecision(2));
  return `largest difference ${a} (allowed ${most}), mean ${b} (allowed ${meanAllowed})`;
}
