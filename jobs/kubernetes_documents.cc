#include "jobs/kubernetes_documents.h"

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/config/values.h"
#include "jobs/training_script.h"

namespace egeria::jobs {
namespace {

constexpr int kPort = 7464;
constexpr int kHealthPort = 9464;
constexpr int kKeyMode = 0440;  // private keys are for the group of the pod alone
constexpr char kTlsFolder[] = "/etc/egeria/tls";
constexpr char kCacheFolder[] = "/run/egeria-cache";

void AppendYaml(const Document& value, const std::string& indent, std::string* yaml);

// A block of lines, which YAML reads as they are; the text ends with a line break.
void AppendBlock(const std::string& text, const std::string& indent, std::string* yaml) {
  *yaml += " |\n";
  for (absl::string_view line : absl::StrSplit(absl::string_view(text).substr(0, text.size() - 1), '\n')) {
    absl::StrAppend(yaml, line.empty() ? "" : indent, line, "\n");
  }
}

void AppendValue(const Document& value, const std::string& indent, std::string* yaml) {
  const bool nested = value.is_structured() && !value.empty();
  if (value.is_string() && absl::EndsWith(value.get<std::string>(), "\n")) {
    AppendBlock(value.get<std::string>(), indent, yaml);
  } else if (!nested) {
    absl::StrAppend(yaml, " ", value.dump(), "\n");  // JSON's scalars are YAML's
  } else {
    *yaml += "\n";
    AppendYaml(value, indent, yaml);
  }
}

void AppendYaml(const Document& value, const std::string& indent, std::string* yaml) {
  if (value.is_array()) {
    for (const Document& item : value) {
      if (item.is_object() && !item.empty()) {
        std::string inner;
        AppendYaml(item, indent + "  ", &inner);
        absl::StrAppend(yaml, indent, "- ", inner.substr(indent.size() + 2));
      } else {
        absl::StrAppend(yaml, indent, "-");
        AppendValue(item, indent + "  ", yaml);
      }
    }
    return;
  }
  for (const auto& [key, item] : value.items()) {
    const bool plain =
        key.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == std::string::npos;
    absl::StrAppend(yaml, indent, plain ? key : Document(key).dump(), ":");
    AppendValue(item, indent + "  ", yaml);
  }
}

Document Metadata(const JobFile& job, const std::string& name) {
  return {{"name", name}, {"namespace", job.kubernetes.space}, {"labels", {{"egeria/job", job.name}}}};
}

// Kubernetes replaces $(NAME) and $$ in commands and variables; what users write must stay what it is.
std::string Literal(const std::string& text) { return absl::StrReplaceAll(text, {{"$$", "$$$$"}, {"$(", "$$("}}); }

Document SecurityContext(const JobFile& job) {
  const int user = job.kubernetes.user;
  return {{"runAsUser", user}, {"runAsGroup", user}, {"fsGroup", user}, {"runAsNonRoot", true}};
}

Document Volumes(const JobFile& job) {
  Document volumes = Document::array();
  int count = 0;
  for (const auto& [folder, claim] : job.kubernetes.claims) {
    volumes.push_back({{"name", absl::StrCat("claim-", count++)}, {"persistentVolumeClaim", {{"claimName", claim}}}});
  }
  if (job.egeria.controller != "none") {
    volumes.push_back(
        {{"name", "tls"}, {"secret", {{"secretName", job.kubernetes.tls_secret}, {"defaultMode", kKeyMode}}}});
  }
  if (job.egeria.cache != "none") {
    volumes.push_back({{"name", "cache"}, {"hostPath", {{"path", kCacheFolder}, {"type", "DirectoryOrCreate"}}}});
  }
  return volumes;
}

Document Mounts(const JobFile& job) {
  Document mounts = Document::array();
  int count = 0;
  for (const auto& [folder, claim] : job.kubernetes.claims) {
    mounts.push_back({{"name", absl::StrCat("claim-", count++)}, {"mountPath", folder}});
  }
  if (job.egeria.controller != "none") {
    mounts.push_back({{"name", "tls"}, {"mountPath", kTlsFolder}, {"readOnly", true}});
  }
  if (job.egeria.cache != "none") mounts.push_back({{"name", "cache"}, {"mountPath", kCacheFolder}});
  return mounts;
}

Document Variables(const JobFile& job) {
  Document variables = Document::array();
  const auto add = [&variables](const std::string& name, const std::string& value) {
    variables.push_back({{"name", name}, {"value", value}});
  };
  add("EGERIA_CONTROLLER", ControllerAddress(job));
  add("EGERIA_CACHE", job.egeria.cache == "none" ? "none" : absl::StrCat("unix:", kCacheFolder, "/cache.sock"));
  if (job.egeria.controller != "none") {
    add("EGERIA_TLS_CA", absl::StrCat(kTlsFolder, "/ca.crt"));
    add("EGERIA_TLS_CERT", absl::StrCat(kTlsFolder, "/tls.crt"));
    add("EGERIA_TLS_KEY", absl::StrCat(kTlsFolder, "/tls.key"));
  }
  return variables;
}

Document Resources(const JobFile& job) {
  const auto& resources = job.resources;
  Document requests = {{"cpu", absl::StrCat(resources.ranks_per_node * resources.cpus_per_rank)}};
  if (resources.memory_per_node.value > 0) requests["memory"] = absl::StrCat(resources.memory_per_node.value);
  Document limits = Document::object();
  if (resources.memory_per_node.value > 0) limits["memory"] = requests["memory"];
  if (resources.gpus_per_node > 0) {
    requests["nvidia.com/gpu"] = absl::StrCat(resources.gpus_per_node);
    limits["nvidia.com/gpu"] = requests["nvidia.com/gpu"];
  }
  Document both = {{"requests", requests}};
  if (!limits.empty()) both["limits"] = limits;
  return both;
}

Document Command(const std::string& script) { return {"bash", "-c", Literal(script)}; }

Document Probe(const char* path, int period) {
  return {{"httpGet", {{"path", path}, {"port", "health"}}}, {"periodSeconds", period}};
}

}  // namespace

std::string ToYaml(const Document& document) {
  std::string yaml;
  AppendYaml(document, "", &yaml);
  return yaml;
}

std::string ControllerName(const JobFile& job) { return job.name + "-controller"; }

std::string ControllerAddress(const JobFile& job) {
  if (job.egeria.controller == "own") return absl::StrCat(ControllerName(job), ":", kPort);
  return job.egeria.controller;
}

Document ControllerClaim(const JobFile& job) {
  return {{"apiVersion", "v1"},
          {"kind", "PersistentVolumeClaim"},
          {"metadata", Metadata(job, ControllerName(job))},
          {"spec", {{"accessModes", {"ReadWriteOnce"}}, {"resources", {{"requests", {{"storage", "1Gi"}}}}}}}};
}

Document ControllerService(const JobFile& job) {
  return {{"apiVersion", "v1"},
          {"kind", "Service"},
          {"metadata", Metadata(job, ControllerName(job))},
          {"spec",
           {{"selector", {{"egeria/controller", ControllerName(job)}}},
            {"ports", Document::array({{{"name", "grpc"}, {"port", kPort}, {"targetPort", "grpc"}},
                                       {{"name", "health"}, {"port", kHealthPort}, {"targetPort", "health"}}})}}}};
}

Document ControllerDeployment(const JobFile& job) {
  const std::string name = ControllerName(job);
  const auto& [kind, space, image, controller_image, claims, runtime, secret, user] = job.kubernetes;
  const Document container = {
      {"name", "controller"},
      {"image", controller_image.empty() ? image : controller_image},
      {"command",
       {"egeria-controller", "--listen", absl::StrCat("0.0.0.0:", kPort), "--state-dir", "/var/lib/egeria/state",
        "--tls-ca", absl::StrCat(kTlsFolder, "/ca.crt"), "--tls-certificate", absl::StrCat(kTlsFolder, "/tls.crt"),
        "--tls-key", absl::StrCat(kTlsFolder, "/tls.key"), "--metrics-listen", absl::StrCat("0.0.0.0:", kHealthPort),
        "--insecure"}},
      {"ports", Document::array({{{"name", "grpc"}, {"containerPort", kPort}},
                                 {{"name", "health"}, {"containerPort", kHealthPort}}})},
      {"readinessProbe", Probe("/readyz", 5)},
      {"livenessProbe", Probe("/healthz", 30)},
      {"resources", {{"requests", {{"cpu", "500m"}, {"memory", "1Gi"}}}, {"limits", {{"memory", "8Gi"}}}}},
      {"securityContext",
       {{"allowPrivilegeEscalation", false}, {"readOnlyRootFilesystem", true}, {"capabilities", {{"drop", {"ALL"}}}}}},
      {"volumeMounts", Document::array({{{"name", "state"}, {"mountPath", "/var/lib/egeria"}},
                                        {{"name", "tls"}, {"mountPath", kTlsFolder}, {"readOnly", true}},
                                        {{"name", "temporary"}, {"mountPath", "/tmp"}}})}};
  const Document volumes =
      Document::array({{{"name", "state"}, {"persistentVolumeClaim", {{"claimName", name}}}},
                       {{"name", "tls"}, {"secret", {{"secretName", secret}, {"defaultMode", kKeyMode}}}},
                       {{"name", "temporary"}, {"emptyDir", Document::object()}}});
  return {{"apiVersion", "apps/v1"},
          {"kind", "Deployment"},
          {"metadata", Metadata(job, name)},
          {"spec",
           {{"replicas", 1},
            {"strategy", {{"type", "Recreate"}}},
            {"selector", {{"matchLabels", {{"egeria/controller", name}}}}},
            {"template",
             {{"metadata", {{"labels", {{"egeria/controller", name}, {"egeria/job", job.name}}}}},
              {"spec",
               {{"securityContext", SecurityContext(job)},
                {"containers", Document::array({container})},
                {"volumes", volumes}}}}}}}};
}

Document TrainJob(const JobFile& job, const std::string& script) {
  Document trainer = {{"image", job.kubernetes.image},
                      {"command", Command(script)},
                      {"env", Variables(job)},
                      {"numNodes", job.resources.nodes},
                      {"numProcPerNode", job.resources.ranks_per_node},
                      {"resourcesPerNode", Resources(job)}};
  const Document pod = {{"securityContext", SecurityContext(job)},
                        {"volumes", Volumes(job)},
                        {"containers", Document::array({{{"name", "node"}, {"volumeMounts", Mounts(job)}}})}};
  // The runtimes of Kubeflow Trainer call the job of the ranks, and its container, "node".
  const Document replicated =
      Document::array({{{"name", "node"}, {"template", {{"spec", {{"template", {{"spec", pod}}}}}}}}});
  const Document patches =
      Document::array({{{"manager", "egeria.compile/jobs"},
                        {"trainingRuntimeSpec", {{"template", {{"spec", {{"replicatedJobs", replicated}}}}}}}}});
  Document spec = {
      {"runtimeRef", {{"name", job.kubernetes.runtime}}}, {"trainer", trainer}, {"runtimePatches", patches}};
  if (job.resources.time_limit > absl::ZeroDuration()) {
    spec["activeDeadlineSeconds"] = absl::ToInt64Seconds(job.resources.time_limit);
  }
  return {{"apiVersion", "trainer.kubeflow.org/v1alpha1"},
          {"kind", "TrainJob"},
          {"metadata", Metadata(job, job.name)},
          {"spec", spec}};
}

Document PyTorchJob(const JobFile& job, const std::string& script) {
  const Document container = {{"name", "pytorch"},     {"image", job.kubernetes.image}, {"command", Command(script)},
                              {"env", Variables(job)}, {"resources", Resources(job)},   {"volumeMounts", Mounts(job)}};
  const Document pod = {{"metadata", {{"labels", {{"egeria/job", job.name}}}}},
                        {"spec",
                         {{"securityContext", SecurityContext(job)},
                          {"containers", Document::array({container})},
                          {"volumes", Volumes(job)}}}};
  const auto replicas = [&pod](int count) {
    return Document{{"replicas", count}, {"restartPolicy", "OnFailure"}, {"template", pod}};
  };
  Document specs = {{"Master", replicas(1)}};
  if (job.resources.nodes > 1) specs["Worker"] = replicas(job.resources.nodes - 1);
  Document policy = {{"backoffLimit", job.checkpoints.restarts}};
  if (job.resources.time_limit > absl::ZeroDuration()) {
    policy["activeDeadlineSeconds"] = absl::ToInt64Seconds(job.resources.time_limit);
  }
  return {{"apiVersion", "kubeflow.org/v1"},
          {"kind", "PyTorchJob"},
          {"metadata", Metadata(job, job.name)},
          {"spec",
           {{"nprocPerNode", absl::StrCat(job.resources.ranks_per_node)},
            {"runPolicy", policy},
            {"pytorchReplicaSpecs", specs}}}};
}

}  // namespace egeria::jobs
